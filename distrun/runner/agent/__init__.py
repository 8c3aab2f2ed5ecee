"""The agent: the program that runs on each host of a job, starts the host's ranks and reports on them.

`python -m distrun.runner.agent` reads frames from its stdin and writes frames to its stdout; the launcher runs it
through `runner.hosts`. It has one thread, a `Loop` of `system`. `launcher_connection` speaks with the launcher,
`agent` executes its commands, `rank_process` is one rank with its pipes, `relay` passes on what ranks write and read,
and `ending` says when which signal is due at the end. An agent is a subreaper, so no descendant can escape from it;
when its stdin closes, the launcher is gone, and it ends all its descendants and leaves. Two more programs are run on
hosts: `function_worker` is the command of a rank of `distrun.run`, and `sweep` ends what a dead agent has left behind.
"""
