"""Worlds and process sets made of communicators of mpi4py."""

import numpy as np
from mpi4py import MPI
from refusals import refuse

import distrun

world = MPI.COMM_WORLD
half = world.Split(world.rank % 2, world.rank)
for _ in range(2):  # a call that fails leaves nothing behind
    sets = [distrun.ProcessSet(half), distrun.ProcessSet(world.Dup())]
    refuse(distrun.UsageError, "of these ranks already", lambda: distrun.init(world, process_sets=sets))  # noqa: B023
mine = distrun.ProcessSet(half)
assert (mine.ranks, mine.process_set_id, mine.mpi_comm) == (None, None, half)
distrun.init(world, process_sets=[mine])
assert (distrun.rank(), distrun.size()) == (world.rank, world.size)
assert mine.ranks == [rank for rank in range(world.size) if rank % 2 == world.rank % 2]
assert mine.process_set_id == 1 + world.rank % 2
assert distrun.allreduce(np.ones(1), op=distrun.Sum, process_set=mine) == half.size
distrun.barrier()  # rank 0 decides about the other set, too
distrun.shutdown()

distrun.init(half)
assert (distrun.rank(), distrun.size()) == (half.rank, half.size)
assert distrun.allgather_object(world.rank) == half.allgather(world.rank)
distrun.shutdown()
