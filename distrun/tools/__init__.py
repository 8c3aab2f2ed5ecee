"""Commands that a job can do without.

`doctor` examines hosts and the network between them, `sweep` runs many trials of one script, `kubernetes` makes and
follows a job in a cluster, `top` shows running jobs, and `predict` tells how fast a job would be on more hosts.
"""
