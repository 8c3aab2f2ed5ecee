"""`distrun sweep`: many trials of one script with different parameters, several at once, on the slots of all hosts.

`command` reads the command line, and `preparation` makes a `plan` of it. `sweep` executes the plan: it has the queue of
events and the thread that decides, as `runner.job` has for one job, and what is decided comes from `policy`, which is
pure. Agents are started once for the whole sweep (`runner.elastic.hosts`); `planning` plans the ranks of a trial, a
world of its own, and `processes` has agents start them, or hands the command to spares. `output` keeps what they write,
and `reporter` tells and keeps how trials begin and end.

`space` has parameters with their ranges, `search` the sources of trials (a grid, seeds, Optuna), and `results` the
record from which a sweep is resumed, the table, and a study for Optuna's dashboard. In a rank, `distrun.report` is the
other end (`runtime.collectives.trial`).
"""
