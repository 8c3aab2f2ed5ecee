"""Observing a job while it runs: the events of all ranks on one clock, and what is made of them.

`observation` asks the agents and hands on what they tell to `consumers`, on a thread of its own; `clocks` aligns the
clocks of the hosts. A job of which nobody wants to see anything has none of it.
"""
