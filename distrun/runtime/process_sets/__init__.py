"""Process sets: subsets of a world's ranks, which have collectives of their own.

`process_set` has the class, `process_sets` registers sets, and `member_sets` makes sets that only their own ranks form.
"""
