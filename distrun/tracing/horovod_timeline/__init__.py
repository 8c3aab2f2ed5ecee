"""The timeline of Horovod's mode: rank 0 writes it while the job runs, with Horovod's names.

`entries` makes Horovod's events of those of a ring, and `writer` writes them beside the training.
"""
