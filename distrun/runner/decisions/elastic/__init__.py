"""The decisions about an elastic job, without any effect: which processes make up the next generation, and when.

`policy` is the state machine, `actions` are what it asks for. Processes are numbered by the launcher, in the order in
which they are started; in the first generation the number is the rank.
"""
