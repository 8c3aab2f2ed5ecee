"""MPI as a carrier between ranks that mpirun or srun started; mpi4py is imported only here and in `backends.mpi`.

`requests` posts non-blocking operations and waits for them without blocking inside MPI. `links` moves arrays between
hosts on top of that, for the hierarchical backend (`backends.mpi` does so within one host). `rendezvous` uses MPI just
to tell all ranks where rank 0 listens and what the job key is; everything after that goes over TCP.
"""
