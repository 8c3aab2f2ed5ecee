"""Shared memory: how the ranks of one host communicate.

Each rank owns a `segment`, which all ranks of the host map. It holds the rank's state, staging buffers, message rings
and a heap for arrays. A `mailbox` is one of the rings, from one rank to another. Memory cannot wake a sleeping rank, so
a `doorbell` does. `peer_process` reads from a process's pidfd whether it is stopped and how it ended.

Nothing here knows what is communicated: `transport.local_group` waits and exchanges, `backends.shared_memory` reduces.
"""
