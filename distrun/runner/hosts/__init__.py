"""Reaching hosts: running programs of ours there, and speaking with their agents.

`program` runs a module of ours on this machine and says what a running module looks like to those who talk to it;
`ssh` runs one on another host behind a channel of SSH, and `job_steps` on another node of a Slurm allocation by srun.

Above these, an agent is a program with a life: `local`, `ssh` and `srun` start one and know how it can end; what the
latter two have in common is in `remote`. `connector` starts the agents of many hosts at once. `agent_client` is the
launcher's end of each, two threads that turn frames into events, and `stdin` passes the launcher's standard input to
one rank. `options` are those of command lines about hosts and how to reach them. `runner.job` owns the agents; the
doctor runs its probes with the lower half of this room. `joining` is for hosts that call the launcher, and `nodes` for
launchers of one job that meet.
"""
