"""The agent: the program on each host of a job that starts the host's ranks and reports on them.

`python -m distrun.runner.agent` reads frames from its stdin and writes frames to its stdout. The launcher runs it
through `runner.hosts`. It has one thread, which runs the event loop `system.loop`. `launcher_connection` exchanges
frames with the launcher, `agent` executes its commands, `rank_process` is one rank with its pipes, `relay` passes on
the ranks' input and output, and `ending` schedules the signals that end processes. An agent is a subreaper, so no
descendant can escape from it. When its stdin closes, the launcher is gone, and the agent ends all its descendants and
exits. Three more programs run on hosts: `function_worker` is the command of a rank of `distrun.run`, `spare` a process
in reserve in an elastic job, and `cleanup.sweep` ends what a dead agent has left behind.
"""
