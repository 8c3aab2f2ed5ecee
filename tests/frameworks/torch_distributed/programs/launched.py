"""Trains a small model by DDP in two process groups, one after the other, and prints its weights.

launched.py GROUP [spawn]      GROUP: the arguments of init_process_group, as JSON; spawn: two ranks are spawned
"""

from __future__ import annotations

import json
import os
import sys

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(rank: int | None, group: dict[str, object]) -> None:
    torch.set_num_threads(1)
    spawned = {} if rank is None else {"rank": rank, "world_size": 2}
    for number in range(2):
        method = str(group.get("init_method", "env://"))
        options = {**group, **spawned, "init_method": method + str(number) if method.startswith("file:") else method}
        dist.init_process_group(**options)
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(dist.get_rank()))).sum().backward()
            optimizer.step()
        weights = torch.cat([value.detach().flatten() for value in model.parameters()])
        line = f"RESULT {dist.get_backend()} {dist.get_rank()} {dist.get_world_size()} {weights.tolist()}\n"
        os.write(1, line.encode())  # in one piece: children of a rank share its pipe
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    described = json.loads(sys.argv[1])
    if "spawn" in sys.argv:
        torch.multiprocessing.spawn(train, (described,), nprocs=2)
    else:
        train(None, described)
    if "distrun" in sys.modules and described.get("backend") == "distrun":
        import distrun

        assert not distrun.is_initialized()
    sys.stdout.flush()
    os._exit(0)  # gloo may abort at the interpreter's end
