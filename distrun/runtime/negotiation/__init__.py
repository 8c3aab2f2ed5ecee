"""The negotiation: one order of operations for all ranks, decided by rank 0, the coordinator.

`pending` holds a rank's operations from submission to completion; `response_cache` the requests that are known by their
cache ids, so that they need not be sent again. `negotiator` moves the operations on: submissions go up, decisions come
down, as `messages` through the control plane (`transport`), and every rank's `intake` carries them out; `eager` lets
small arrays travel along between hosts, and two ranks do without decisions; `inquiries` ask who is missing, which the
coordinator answers in `questions`. Two modules are pure policy, without clock or messages of their own: `controller`
says what is ready, in which order, and what the ranks disagree about, by `matching` what they submit; `stalls` says
which rank is missing, whom to ask, when to give up. A rank that is asked tells its `whereabouts`. `decisions` is what
the coordinator says. Where there are many hosts, their first ranks speak for the others (`tree`).

The engine calls the negotiator, one thread at a time; the negotiator calls everything else here, and never the engine.
"""
