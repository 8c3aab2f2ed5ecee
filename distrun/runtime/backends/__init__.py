"""Backends: move arrays in host memory between ranks.

`base` is the interface: each collective as a method on flat arrays, called by all ranks of a group in the same order.
`dispatch` calls these methods for operations that the ranks have agreed on. `shared_memory` serves the ranks of one
host, `mpi` the ranks of one host through MPI, `hierarchical` the ranks of several hosts, and `single_process` one rank
alone. `groups` holds one backend for each process set, made by `group_factories`.

`hierarchical` divides its work in two. `local_arrays` holds the arrays that the ranks of a host show each other in
shared memory. `rail` moves data between one rank of each host over the links, by one of the `algorithms` and encoded by
`wire_format`. `quantisation` is the encoding in 8 or 4 bits with scales.

A backend is called by the engine, for one operation at a time, or by `distrun.runtime.gpu` for what GPUs cannot do. It
calls `transport` (the local group, links) and `operations.reduction` (the arithmetic), and knows nothing of
negotiation.
"""
