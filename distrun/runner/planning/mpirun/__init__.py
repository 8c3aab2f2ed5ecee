"""mpirun as the launcher: a plan in which we start nothing but mpirun.

mpirun starts the ranks itself, on all hosts, and tells them who they are; nothing of our launch contract is in their
environment but what scripts of other frameworks read, RANK and its like. Our agent looks after mpirun: signals, exit
status and cleaning up are as with ranks of our own.

`plan` makes the plan. `program` finds mpirun and says of which MPI it is, on which the words of its `command_line`
depend, and `rank_command` gives each rank the variables that ranks of our own have.
"""
