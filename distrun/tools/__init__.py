"""Commands that a job does not need.

`doctor` examines hosts and the network between them, `sweep` runs many trials of one script, `kubernetes` creates and
follows a job in a cluster, `top` shows running jobs, `predict` estimates how fast a job would be on more hosts, and
`help` explains the command line, which `completion` completes. `notebook` is a magic of IPython instead of a command.
"""
