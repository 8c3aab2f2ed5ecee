"""MPI as a transport between ranks that mpirun or srun started. Only this package and `backends.mpi` import mpi4py.

`requests` posts non-blocking operations and waits for them without blocking inside MPI. On top of this, `links` moves
arrays between hosts for the hierarchical backend, as `backends.mpi` does within one host. `afterwards` calls MPI while
no rank waits. `rendezvous` uses MPI only to tell all ranks rank 0's endpoint and the job key. Everything after that
uses TCP.
"""
