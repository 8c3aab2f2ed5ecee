"""Gathers that inductor puts together into one, as in the graphs of FSDP: it calls operators with an output."""

import torch
from torch import distributed as dist
from torch._inductor import config
from torch.distributed import _functional_collectives as functional

config.bucket_all_gathers_fx = "all"
config.bucket_reduce_scatters_fx = "all"
dist.init_process_group("distrun")


def step(*parts):
    wholes = [functional.all_gather_tensor(part, 0, dist.group.WORLD) for part in parts]
    return sum((whole * (place + 1)).sum() for place, whole in enumerate(wholes)), *wholes


parts = [torch.full((4, 4), float(dist.get_rank() + place)) for place in range(3)]
pairs = zip(step(*parts), torch.compile(step)(*parts), strict=True)
print(dist.get_rank(), "equal", all(torch.equal(eager, compiled) for eager, compiled in pairs))
dist.barrier()
dist.destroy_process_group()
