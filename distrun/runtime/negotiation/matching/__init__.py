"""Matching what ranks submit: in common `streams` as long as all do so in one order, else one by one (`matching`).

`disagreement` is the sentence about an operation of which ranks have asked for different things, and
`decision_queue` has what was decided in order, with the disagreements that ranks are still asked about.
"""
