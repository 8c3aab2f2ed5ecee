"""Planning: turns the user's request into frozen data: the host and the environment of each rank.

`prepare` is the entry point. It reads the surroundings: the scheduler's allocation (`allocation`), the SSH
configuration (`ssh_config`), this machine's names, cores and GPUs. The module `request` has the types for these facts
and for the user's request. From both the `planner` makes the `plan` as a pure function, with the help of `hosts` (host
lists and host files), `placement` (which host gets which ranks) and `variables` (the environments of ranks). `mpirun`
makes the plan of a job whose ranks mpirun starts, and `elastic` plans the hosts and generations of an elastic job as
they come. Facts that only the hosts know, such as their free ports, are put into the plan when their agents have
answered: `endpoints` does that, with the addresses that `networks` prefers. `python_command` takes a Python command
apart for spares. Apart from `prepare`, nothing here has effects.
"""
