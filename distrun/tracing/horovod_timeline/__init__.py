"""The timeline of Horovod mode: rank 0 writes it while the job runs, with Horovod's names.

`entries` makes Horovod's events from a ring's, and `writer` writes them in the background.
"""
