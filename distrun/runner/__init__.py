"""The launcher: everything from `distrun -np 4 -H a:2,b:2 python train.py` to an exit status.

A launch, step by step:

1. `launch` starts, and `command_lines` converts the options to a `LaunchRequest`.
2. `planning` reads this machine's facts, the scheduler's allocation and the SSH configuration, and makes a
   `LaunchPlan`: frozen data with the host and the environment of each rank. `distrun --dry-run` prints it and stops
   here.
3. `job` executes the plan. Through `hosts` it starts one agent per host: on this machine as a child process, elsewhere
   by SSH or srun.
4. The agents of other hosts answer with the addresses and free ports of their hosts (`protocol.handshake`). When all
   have answered, the plan is completed with the endpoints of the ranks' rendezvous.
5. Each agent gets its part of the plan as a frame (`protocol.frames`), starts its ranks and relays their output, which
   `output` prints. The room `agent` is the agent's side.
6. Everything that happens, such as a rank's exit, a lost host or Ctrl-C, becomes an event in one queue.
   `decisions.policy`, a state machine, turns events into actions, which `job` executes.
7. When all ranks are gone, the agents end the processes that these have left behind, and exit. The first failure is
   reported (`decisions.failure_report`), and its status becomes the exit status of `distrun`.

If every host has its own launcher, as with torchrun, the launchers first have a rendezvous (`hosts.nodes`). Each plans
the whole job from the same facts, executes its own part, and is notified of events on other hosts. If a cluster manager
starts one process per host, without logins, agents connect to the launcher (`hosts.joining`).

`elastic` has the job whose ranks and hosts come and go. `shipping` brings software and code to other hosts,
`observation` shows how a job spends its time, and `system` is about the machine. Imports point downwards only, in the
order of the contract `runner-rooms` in setup.cfg. Of the runtime, the launcher knows only `distrun.contract`.
"""
