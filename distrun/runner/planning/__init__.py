"""Planning: from what the user asks for to frozen data that says which rank runs where, with which environment.

`prepare` is the way in. It looks at the world: the scheduler's allocation (`allocation`), the SSH configuration
(`ssh_config`), this machine's names, cores and GPUs. What it finds, and what the user asks for, is a `request`; the
`planner` makes the `plan` of it without looking at anything, with the help of `hosts` and `host_ranges` (host lists and
host files), `placement` (which host gets which ranks) and `variables` (the environments of ranks). `mpirun` makes the
plan of a job whose ranks mpirun starts, and `elastic` plans the hosts and generations of an elastic job as they come.
What only the hosts themselves know is put into the plan when their agents have answered: `endpoints` does that, with
the addresses that `networks` prefers. `python_command` takes a Python command apart for spares.
Apart from `prepare`, nothing here has effects.
"""
