"""A step of DDP, collectives and a group of some ranks, with torch's own checks of all of them switched on."""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.set_debug_level(dist.DebugLevel.DETAIL)
dist.init_process_group("distrun")
total = torch.ones(4)
dist.all_reduce(total)
dist.all_reduce(total, group=dist.new_group([0, 1]))
net = DistributedDataParallel(torch.nn.Linear(4, 4))
net(torch.ones(2, 4)).sum().backward()
gathered = [torch.empty(4) for _ in range(2)]
dist.all_gather(gathered, total)
print(dist.get_rank(), total.tolist(), net.module.weight.grad.sum().item(), torch.stack(gathered).sum().item())
dist.barrier()
dist.destroy_process_group()
