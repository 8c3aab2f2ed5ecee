"""The launcher: from `distrun -np 4 -H a:2,b:2 python train.py` to an exit status.

A launch, step by step:

1. `cli` reads the options and `launch` (or `function`, for `distrun.run`) turns them into a `LaunchRequest`.
2. `planning` looks at this machine, the scheduler and the SSH configuration, and makes a `LaunchPlan`: frozen data that
   says which rank runs on which host, in which environment. `distrun --dry-run` prints it and stops here.
3. `job` executes the plan. It has `connect` start one agent per host: here as a child process, elsewhere by SSH or
   srun.
4. The agents of other hosts answer with the addresses and free ports of their hosts (`protocol.handshake`). When all
   have answered, the plan is completed with the endpoints at which the ranks will meet.
5. Each agent gets its part of the plan as a frame (`protocol.frames`), starts its ranks and relays what they write,
   which `output` prints. The room `agent` is the agent's side of all this.
6. Whatever happens, be it a rank's end, a lost host or Ctrl-C, becomes an event in one queue. `supervision.policy` is
   the one decider: events go in, and actions come out, which `job` executes.
7. When all ranks are gone, the agents end the processes that these have left behind, and leave. The first failure is
   reported (`supervision.failure_report`), and its status becomes that of `distrun`.

Where every host has a launcher of its own, as with torchrun, these meet first (`nodes`). Each plans the whole job from
the same facts, executes its own part, and hears of the events on other hosts. Where a cluster manager starts one
process per host, and nobody can log in, agents call the launcher (`joining`);
for Kubernetes, `kubernetes` makes what it is to start.

`doctor` examines hosts and the network between them before there is a job. `compat` starts the job of a command line of
another launcher, which `command_lines` translates. `elastic` has the job whose ranks and hosts come and go.
`suspension` stops a job by Ctrl-Z and lets it go on. Calls go down: cli -> launch -> doctor, function -> elastic -> job
-> suspension, nodes -> connect, output -> planning, supervision -> protocol -> system; an agent, on its host, uses the
data of planning, protocol and system. Of the runtime, the launcher knows the environment variables that a rank is born
with (`contract`), the settings, what Horovod calls these, and the messages to processes of elastic jobs
(`elastic.messages`).
"""
