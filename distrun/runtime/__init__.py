"""The runtime: everything that runs inside a rank, from `init()` to the last collective.

One operation in seven steps, when rank 1 of 2 calls `distrun.allreduce_(x, name="loss")`:

1. `collectives` checks the arguments and makes a `Handle` with a `Request`: kind, name, dtype, shapes, operator and
   factors, everything the ranks must agree on (`operations`).
2. `negotiation` adds it to the pending operations of this rank. A request that was decided before has a cache id, and
   only this id is sent.
3. The caller waits, so it takes the turn and runs the progress loop itself. If no caller waits, the progress thread
   does (`engine`).
4. The submission goes up to rank 0, the coordinator: on its own host through a mailbox in `shared_memory`, from another
   host over TCP (`transport`).
5. Rank 0's controller sees that all ranks have submitted the operation, and decides that it is executed. The decision
   goes down to all ranks, in one order.
6. Each rank hands the operations that were decided together to one of its `backends`, or to `gpu` where the tensors are
   on a device. There the data moves: in memory that the ranks of a host share, by rails to other hosts, through MPI or
   NCCL.
7. The handle is done, its result is collected, and the caller gives the turn back.

`world` is what a process knows of its job, and `bootstrap` joins the job: `environments` finds out which launcher
started this rank, and `devices` which GPU it is bound to. `rendezvous` connects the ranks with each other, and
`transport` and `mpi` keep the connections. What the launcher and the ranks must agree on, settings included, is in
`distrun.contract`. Imports point down only, in the order of the contract `runtime-rooms` in setup.cfg. docs/design.md
has the rest.
"""
