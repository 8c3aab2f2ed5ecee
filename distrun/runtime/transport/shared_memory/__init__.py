"""Shared memory: the ground on which the ranks of one host communicate.

Each rank owns a `segment`, which all ranks of the host have mapped: it holds the rank's state, staging buffers, message
rings and a heap for arrays. A `mailbox` is one of the rings, from one rank to another. Memory cannot wake a sleeping
rank, so a `doorbell` does; and `peer_process` tells from a process's descriptor how it is, or how it ended.

Nothing here knows what is communicated: `transport.local_group` waits and exchanges, `backends.shared_memory` reduces.
"""
