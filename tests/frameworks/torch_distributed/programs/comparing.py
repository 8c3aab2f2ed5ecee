"""Runs the same training on gloo and on distrun, in the same ranks, and compares what comes out.

Programs get a folder for files of their own as their first argument, and may get the names of variants.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import models
import torch
from torch import distributed as dist

FOLDER = Path(sys.argv[1])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BACKENDS = ("gloo", "distrun")
_groups: list[object] = []  # gloo aborts if a callback of a future is the last to know its group
torch.set_num_threads(1)


@contextlib.contextmanager
def group(backend: str, name: str) -> Iterator[None]:
    """Be in a process group of all ranks; the names of a program's groups differ."""
    method = f"file://{FOLDER}/{Path(sys.argv[0]).stem}.{name}.{backend}"
    hook = sys.excepthook
    dist.init_process_group(backend, init_method=method, rank=RANK, world_size=SIZE)
    try:
        assert dist.get_backend() == backend
        _groups.append(dist.group.WORLD)
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook  # torch's put a prefix before each line, one for each group


def compare(name: str, train: Callable[[], Any], exact: bool = True, tolerance: float = 1e-6) -> Any:
    """Call `train` in a group of each backend; what it returns, trees of tensors and numbers, must be the same.

    Where the backends may add up in different orders, it is not `exact`.
    """
    results = []
    for number, backend in enumerate(BACKENDS):
        with group(backend, f"{name}.{number}"):
            torch.manual_seed(0)
            results.append(train())
            dist.barrier()  # rank 0 coordinates: it must not leave while others use a group without it
    torch.testing.assert_close(
        results[1],
        results[0],
        rtol=0 if exact else tolerance,
        atol=0 if exact else tolerance,
        msg=lambda text: f"{name} on rank {RANK}: {text}\ndistrun {results[1]}\ngloo {results[0]}",
    )
    if RANK == 0:
        print(name, "agrees")
    return results[1]


def compare_all(variants: Mapping[str, Callable[[], Any]], is_exact: Callable[[str], bool]) -> None:
    """Compare each variant, or those that the program's further arguments name."""
    for name in sys.argv[2:] or variants:
        compare(name, variants[name], exact=is_exact(name))


def batches(count: int, rank: int = RANK) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of a rank."""
    return models.batches(count, rank)


def run(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[float]:
    """Train; return the losses of this rank."""
    return models.train(model, optimizer, batches(steps))


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return copies of all parameters and buffers."""
    return [value.detach().clone() for value in model.state_dict().values()]
