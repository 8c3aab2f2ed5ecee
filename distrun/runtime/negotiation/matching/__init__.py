"""Matching what ranks submit: in common `streams` while all submit in one order, otherwise one by one (`matching`).

`disagreement` makes the sentence about an operation that ranks have submitted with different requests. `decision_queue`
keeps the decisions in order, with the disagreements that wait for answers from ranks.
"""
