"""Process sets of communicators, two of them with the same ranks: refused each time, and then corrected."""

import horovod.torch as hvd
from horovod.common.process_sets import get_process_set_ids_and_ranks
from mpi4py import MPI

comm = MPI.COMM_WORLD
half = comm.Split(color=comm.rank % 2, key=comm.rank)
for _ in range(2):
    try:
        hvd.init(comm=comm, process_sets=[hvd.ProcessSet(half), hvd.ProcessSet(comm.Dup()), hvd.ProcessSet([0])])
    except ValueError:
        print(comm.rank, "refused")
    comm.barrier()
hvd.init(comm=comm, process_sets=[hvd.ProcessSet(half)])
print(comm.rank, "has", get_process_set_ids_and_ranks())
comm.barrier()
hvd.shutdown()
