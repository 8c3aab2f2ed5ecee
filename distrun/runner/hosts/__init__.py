"""Hosts: how the launcher reaches them, runs programs of distrun there, and communicates with their agents.

`program` defines the interface of a running module of distrun, and runs one on this machine. `ssh` runs one on another
host in an SSH channel, and `job_steps` on another node of a Slurm allocation by srun.

An agent is such a program. `local`, `ssh` and `srun` start agents and explain how they ended, and `remote` holds what
the latter two have in common, such as the handshake (`introduction`). `connector` starts the agents of many hosts at
once. `agent_client` is the launcher's end of an agent: two threads that turn frames into events. `options` are the
command-line options about hosts. `runner.job` owns the agents, and the doctor runs its probes with the same programs.

Hosts may also call the launcher. In `joining` they meet at a listener, and become agents of the launcher there. In
`nodes` every host has a launcher of its own, and these meet at the same listener.
"""
