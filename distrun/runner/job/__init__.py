"""One job from start to end: a queue of events, the one thread that handles them, and the actions that it executes.

`job` has the queue and the thread: it takes events from agents, signals and the printer, asks the policy, and executes
the policy's actions. `options` has the types of its input and output. `agents` holds the agents that it has started, by
host. `reporter` prints for the user: the ranks' output, progress, and the failure report. `observing` feeds observers,
such as `distrun top`, `suspension` handles Ctrl-Z, and `calls` pickles calls of functions on ranks and unpickles their
results.
"""
