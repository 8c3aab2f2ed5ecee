"""Process sets: some of a world's ranks, which have collectives of their own.

`process_set` is one, `process_sets` are all that there are, and `member_sets` those whose members alone make them.
"""
