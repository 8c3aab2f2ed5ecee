"""Joining the job, dividing data among the ranks, and the end of a rank's data."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from torch.utils.data import Dataset, DistributedSampler

from distrun.runtime.collectives import initialisation, synchronisation
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world
from distrun.torch import cuda
from distrun.torch.gradients.recording import record


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, with the arguments of `distrun.init`.

    Where there are GPUs, this rank's GPU becomes torch's current one.
    """
    initialisation.init(comm, process_sets)
    record()
    device = world.device()
    if device.name == cuda.CUDA:
        cuda.bind(device.index)


def join(device: int = -1, process_set: ProcessSet = global_process_set) -> int:
    """Join: this rank has no more data. Returns when all ranks have joined (see `distrun.join`).

    Args:
        device: accepted for Horovod's sake.
        process_set: the ranks that take part.

    Returns:
        The last rank to join.
    """
    return synchronisation.join(process_set)


def distributed_sampler(
    dataset: Dataset[Any],
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    process_set: ProcessSet = global_process_set,
) -> DistributedSampler[Any]:
    """Return torch's own `DistributedSampler` for this rank, to be passed to a `DataLoader` as `sampler`.

    Every rank takes the same number of samples, so no rank runs out of data before the others. If the ranks do not
    divide the dataset evenly, an epoch repeats some samples or, with `drop_last`, leaves out the last few. Call
    `sampler.set_epoch(epoch)` before each epoch, otherwise every epoch has the same order. The ranks of `process_set`
    divide the data.

    Raises:
        TypeError: the dataset has no length.
        NotInitializedError: before `init()`.
    """
    if not isinstance(dataset, Sized):
        raise TypeError(
            f"{type(dataset).__name__} has no length: a stream cannot be divided by a sampler, shard it yourself"
        )
    size, rank = process_set.size(), process_set.rank()
    return DistributedSampler(dataset, size, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
