"""Backends: the ways in which arrays in host memory move between ranks.

`base` is the interface: each collective as a method on flat arrays, called by all ranks of a group in the same order.
`dispatch` takes operations that the ranks have agreed on to those methods. `shared_memory` serves the ranks of one
host, `mpi` the ranks of one host through MPI, `hierarchical` the ranks of several hosts, and `single_process` one rank
alone. `groups` has one of them for each process set, which `group_factories` make.

`hierarchical` divides its work in two: `local_arrays` is what the ranks of a host show each other in shared memory,
`rail` what one rank of each host moves over the links to the others, in the type that `wire_format` says and by one of
the `algorithms`; `quantisation` is that of 8 or 4 bits with scales.

A backend is called by the engine, for one operation at a time, or by `distrun.runtime.gpu` for what GPUs cannot do. It
calls `transport` (the local group, links) and `operations.reduction` (the arithmetic), and knows nothing of
negotiation.
"""
