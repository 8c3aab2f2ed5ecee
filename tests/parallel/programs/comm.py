"""Worlds of some of the job's ranks."""

import os

import numpy as np
from refusals import refuse

import distrun

job = int(os.environ["RANK"])
size = int(os.environ["WORLD_SIZE"])

refuse(distrun.UsageError, "give a list of ranks", lambda: distrun.init(comm=3))
refuse(distrun.UsageError, f"on rank {job} of {size}", lambda: distrun.init(comm=[(job + 1) % size]))
refuse(distrun.UsageError, "process_sets='all': give a list", lambda: distrun.init(process_sets="all"))
mine = [rank for rank in range(size) if rank % 2 == job % 2][::-1]
distrun.init(comm=mine)
assert (distrun.size(), distrun.rank()) == (len(mine), mine.index(job))
assert (distrun.local_size(), distrun.local_rank()) == (len(mine), mine.index(job))
assert distrun.allgather_object(job) == mine
distrun.init(comm=mine)  # as it is
other = [job] if len(mine) > 1 else [0, job]
refuse(distrun.UsageError, "in another world than that of rank", lambda: distrun.init(comm=other))
assert distrun.allreduce(np.ones(3), op=distrun.Sum).tolist() == [len(mine)] * 3
distrun.shutdown()

distrun.init(process_sets="dynamic")
assert (distrun.size(), distrun.rank()) == (size, job)
distrun.shutdown()
distrun.init([])  # Horovod's way of saying all
assert distrun.allgather_object(job) == list(range(size))
