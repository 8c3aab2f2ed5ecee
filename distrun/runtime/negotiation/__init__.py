"""The negotiation: one order of operations for all ranks, decided by rank 0, the coordinator.

- `pending` holds a rank's operations from submission to completion, and the requests that are known by their cache ids,
  so that they need not be sent again (the response cache).
- `negotiator` gets operations decided. Submissions go up and decisions come down, as `messages` through the control
  plane (`transport`). The `intake` of every rank does what the `decisions` say.
- `eager` lets small arrays travel along with submissions between hosts, and lets two ranks do without decisions.
- `inquiries` are a rank's questions about missing ranks. The coordinator answers them in `questions`. A rank that is
  asked where it is answers with its `whereabouts`.
- Two rooms are pure policy, without clock or messages of their own. `controller` decides what is ready, in what order,
  and what the ranks disagree about, by `matching` what they submit. `stalls` decides which ranks are missing, which to
  ask, and when to give up. `joining` says what operations mean when some ranks have joined.
- Where there are many hosts, the first rank of each host speaks for its other ranks (`tree`).

The engine calls the negotiator, one thread at a time. The negotiator calls everything else here, and never the engine.
"""
