"""Timelines that ranks write themselves: each writes its own part, and one of them merges the parts at the end.

`part` is the file of one rank, `recorder` writes it in the background, and `merging` makes one timeline from the parts
in a folder. `python -m distrun.tracing.parts FILE` does so if no rank could, because all were killed.
"""
