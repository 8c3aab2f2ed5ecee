"""Timelines that ranks write themselves: each a part of its own, which one of them puts together at the end.

`part` is the file of one rank, `recorder` writes it beside the training, and `merging` makes one timeline of the parts
that lie in a folder. `python -m distrun.tracing.parts FILE` does so where no rank could, because all were killed.
"""
