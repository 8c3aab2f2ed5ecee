"""A plain script of a single process: `distrun --auto` distributes it."""

import json
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from benchmarks.auto.training import BATCH, run


def _prepare(dataset, model, optimizer):
    return DataLoader(dataset, batch_size=BATCH, shuffle=True), optimizer


if __name__ == "__main__":
    torch.manual_seed(0)
    Path(sys.argv[1]).write_text(json.dumps(run(_prepare)))
