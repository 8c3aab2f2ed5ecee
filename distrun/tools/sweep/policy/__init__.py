"""The decisions of a sweep, without any effect: events go in, and actions come out.

`policy` is the state machine. `trials` has the state of a trial and its ranks, and decides whether it or the sweep has
failed. `upcoming` returns the next trial. `running` has the running ones, and decides what the end of one rank means
for the others. `hosts` has the hosts with their free slots, and chooses those of a trial, `spares` keeps processes that
wait for the next one, and `halving` prunes trials. `actions` are what `tools.sweep` executes, besides the actions of
every job.
"""
