"""NCCL, as far as it is used here.

`library` calls it through cupy, `reduction` gives requests in its terms, and `communicators` makes one communicator for
each process set.
"""
