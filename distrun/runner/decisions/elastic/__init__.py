"""The decisions about an elastic job, without any effect: which processes make up the next generation, and when.

`policy` is the state machine, and `actions` are what it returns. `failures`, `regrouping` and `staffing` make its
decisions about the state that they share: `generation` has the present generation, `workforce` the `hosts` and
`processes`, and `failure_record` the failures so far with the `budget` for them. `ending` is the end of the job.
`barring` excludes slots and hosts for a while, `wording` has texts for the user, and `options` are the user's limits.

The launcher numbers processes in the order of their starts. In the first generation the number is the rank.
"""
