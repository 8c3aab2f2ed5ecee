"""The launcher: from `distrun -np 4 -H a:2,b:2 python train.py` to an exit status.

A launch, step by step:

1. `command_lines` reads the options, and `launch` makes them a `LaunchRequest`.
2. `planning` looks at this machine, the scheduler and the SSH configuration, and makes a `LaunchPlan`: frozen data that
   says which rank runs on which host, in which environment. `distrun --dry-run` prints it and stops here.
3. `job` executes the plan. It has `hosts` start one agent per host: here as a child process, elsewhere by SSH or
   srun.
4. The agents of other hosts answer with the addresses and free ports of their hosts (`protocol.handshake`). When all
   have answered, the plan is completed with the endpoints at which the ranks will meet.
5. Each agent gets its part of the plan as a frame (`protocol.frames`), starts its ranks and relays what they write,
   which `output` prints. The room `agent` is the agent's side of all this.
6. Whatever happens, be it a rank's end, a lost host or Ctrl-C, becomes an event in one queue. `decisions.policy` is
   the one decider: events go in, and actions come out, which `job` executes.
7. When all ranks are gone, the agents end the processes that these have left behind, and leave. The first failure is
   reported (`decisions.failure_report`), and its status becomes that of `distrun`.

Where every host has a launcher of its own, as with torchrun, these meet first (`hosts.nodes`). Each plans the whole job
from the same facts, executes its own part, and hears of the events on other hosts. Where a cluster manager starts one
process per host, and nobody can log in, agents call the launcher (`hosts.joining`).

`elastic` has the job whose ranks and hosts come and go. Imports point down only, in the order of the contract
`runner-rooms` in setup.cfg. The launcher knows nothing of the runtime but what is in `distrun.contract`.
"""
