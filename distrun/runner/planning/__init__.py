"""Planning: from what the user asks for to frozen data that says which rank runs where, with which environment.

`prepare` is the way in. It looks at the world: the scheduler's allocation (`allocation`), the SSH configuration
(`ssh_config`), this machine's names, cores and GPUs. Then `plan` decides without looking at anything, with the help of
`hosts` and `host_ranges` (host lists and host files), `placement` (which host gets which ranks), `environ` (the
environment of a rank) and `tf_config`; `mpirun` makes the plan of a job whose ranks mpirun starts. What only the hosts
themselves know is put into the plan when their agents have answered: `endpoints` does that, with the addresses that
`networks` prefers. Apart from `prepare`, nothing here has effects.
"""
