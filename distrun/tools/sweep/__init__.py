"""`distrun sweep`: many trials of one script with different parameters, several at once, on the slots of all hosts.

`command` reads the command line, and `preparation` turns it into a `plan`. `sweep` executes the plan: it has the queue
of events and the thread that decides, like `runner.job` for one job, and `policy`, which is pure, makes the decisions.
Agents are started once for the whole sweep (`runner.elastic.hosts`). `planning` plans the ranks of a trial, which are a
world of their own, and `processes` starts them through agents, or hands the command to spares. `output` keeps what they
write, and `reporter` reports and records how trials begin and end.

`space` has the parameters with their ranges, `search` the sources of trials (a grid, seeds, Optuna), and `results` the
record that a sweep is resumed with, the table, and a study for Optuna's dashboard. In a rank, `distrun.report` is the
other end (`runtime.collectives.trial`).
"""
