"""One job from start to end: one queue of events, one thread that decides, and the effects of its decisions.

`job` has the queue and the thread: it takes events from agents, signals and the printer, asks the policy, and executes
the actions. `options` are what it is given and what it returns. `agents` holds the agents that it has started, by host,
and `reporter` tells the user: what ranks write, what happens meanwhile, and the failure report. `calls` are functions
that ranks call, and what comes back.
"""
