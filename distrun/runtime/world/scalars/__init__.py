"""`DISTRUN_SCALARS`: figures about the job next to the script's own ones, in TensorBoard and MLflow where it uses them.

`shares` computes figures from the events of this rank. `sinks` writes figures, each to the place where the script
writes. `writing` is the thread of rank 0 that does all this.

The figures come from rank 0's own ring. So they need no launcher, agent or message from other ranks, and are the same
under mpirun, but they cannot say which rank the others wait for. They are written only on request: a run that is
compared with others should have no curves that nobody asked for.
"""
