"""The model of a running job, which the live view, the metrics and the report show. Pure.

`model` takes the agents' reports and keeps the current state of each rank. `accounts` keeps the recent activities of
each rank, and `seconds` divides each second of them: computing, waiting for input, waiting for another rank, moving
data. `stragglers` determines which ranks the others wait for, and why. `output` keeps a rank's last lines, and
finds the progress in them.
"""
