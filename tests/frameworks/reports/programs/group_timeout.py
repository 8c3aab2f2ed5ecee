"""The timeout of a group that exists already: a collective that not all ranks call ends by it, on all of them."""

from datetime import timedelta

import torch
from torch import distributed as dist

import distrun

dist.init_process_group("distrun")
store = dist.distributed_c10d._get_default_store()
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), dist.group.WORLD)
if dist.get_rank() == 1:
    store.wait(["given up"])
try:
    dist.all_reduce(torch.ones(2))
except distrun.StallError as error:
    print(dist.get_rank(), "given up:", "1 s" in str(error) and "rank 1" in str(error))
if dist.get_rank() == 0:
    store.set("given up", "yes")
    store.wait(["seen"])
else:
    store.set("seen", "yes")
dist.destroy_process_group()
