"""The decisions of a sweep, all of them pure: events go in, and actions come out.

`policy` is the one decider. `trials` has what is known of a trial and its ranks; `upcoming` are the trials to come,
`running` those that run, with what the end of one rank means for the others, and `failures` says whether one has
failed. `hosts` are the hosts with their free slots, `placement` says which slots a trial gets, `spares` which processes
wait for the next one, `halving` which trials are pruned, and `limits` are the user's choices. `actions` are what
`tools.sweep` executes, besides those of every job.
"""
