"""mpirun as the launcher: a plan where distrun starts only mpirun.

mpirun starts the ranks itself, on all hosts, and gives them their identity. Their environment has none of distrun's
launch contract, only what scripts of other frameworks read, such as RANK. distrun's agent treats mpirun as a rank, so
signals, exit status and cleaning up are as in other jobs.

`plan` makes the plan. `program` finds mpirun and the MPI that it belongs to, `command_line` writes the options of that
MPI, and gives each rank variables such as RANK, as distrun gives the ranks that it starts itself.
"""
