"""A script that distributes what `plain` does by hand: a sampler, rank 0's weights, a DistributedOptimizer."""

import json
import sys
from pathlib import Path

from torch.utils.data import DataLoader

import distrun.torch
from benchmarks.auto.training import BATCH, run


def _prepare(dataset, model, optimizer):
    distrun.torch.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = distrun.torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = distrun.torch.distributed_sampler(dataset, shuffle=True)
    return DataLoader(dataset, batch_size=BATCH // distrun.torch.size(), sampler=sampler), optimizer


if __name__ == "__main__":
    distrun.torch.init()
    found = run(_prepare)
    if distrun.torch.rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
