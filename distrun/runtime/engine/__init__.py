"""The engine of a rank: which thread makes progress when, and what happens when something fails.

`engine` has the progress loop. `state` has the rules for whose turn it is to run the loop, and `progress_thread` runs
it when no caller waits. `execute` executes operations and completes them. `failing` ends everything when something is
wrong. `start` builds an engine from its parts. `single_process` is the engine of a world of one, where nothing has to
be agreed on. Both are an `operations.engine.Engine`, and handles know them only as that.

Calls go down: the engine lets the `negotiator` get pending operations decided (`negotiation`), takes what is decided
from `PendingOperations`, hands it to a backend or the GPU, and sleeps in the local group (`transport`). None of these
calls the engine.
"""
