"""The engine of a rank: which thread makes progress, when; and what happens when something fails.

`engine` has the progress loop, and `progress_thread` runs it when nobody waits, by the rules of `state`, whose turn it
is; `execute` has operations executed and completes them; `failing` ends everything when something is wrong; `start`
puts an engine together. `single_process` is the engine of a world of one, where nothing has to be agreed on. Both are
an `operations.engine.Engine`, which is all that a handle knows of them.

Calls go down: the engine has the `negotiator` move pending operations on (`negotiation`), takes what is decided from
`PendingOperations`, hands it to a backend or the GPU, and sleeps in the local group (`transport`). Nothing calls it
back.
"""
