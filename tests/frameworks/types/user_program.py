"""A script of a user's, which type checkers read: its types are asserted, and its mistakes are expected.

A `type: ignore` that ignores nothing is an error to mypy here and, with what test_checkers.py asks for, to pyright.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import distrun
import distrun.torch as dt
from distrun.data import shard
from distrun.data.shards import Batches, Samples
from distrun.data.torch_data import DatasetSamples, Loader

Numbers = NDArray[np.float32]


def train(dataset: torch.utils.data.TensorDataset, images: Numbers, labels: Numbers) -> None:
    """Make optimizers and batches."""
    model = torch.nn.Linear(2, 2)
    optimizer = dt.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1 * dt.size()))
    assert_type(optimizer, torch.optim.Adam)
    dt.DistributedOptimizer(model)  # type: ignore
    optimizer.stpe()  # type: ignore
    assert_type(dt.on_rank_zero(model), torch.nn.Linear)

    assert_type(shard(images), Numbers)
    assert_type(shard((images, labels)), tuple[Numbers, Numbers])
    assert_type(shard((images, labels), 32, shuffle=True), Batches)
    assert_type(shard([1, 2, 3]), Samples)
    assert_type(shard([1, 2, 3], 2), Batches)
    assert_type(shard(dataset), DatasetSamples)
    assert_type(shard(dataset, 32, num_workers=4), Loader)


def launch() -> None:
    """Use names that exist and, by mistake, one that does not."""
    assert_type(distrun.size(), int)
    assert_type(distrun.run(distrun.rank, np=2), list[int])
    assert_type(distrun.run(str, (1,), live=True, report="report.html", tag_output=False), list[str])
    distrun.run(distrun.rank, np="2")  # type: ignore
    distrun.allredce(np.ones(2))  # type: ignore
