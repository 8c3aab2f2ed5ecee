"""The samples of a batch: a check that all ranks have the same, and the whole batch as a single process collates it."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import distrun
from distrun.auto.refusing import refuse


def compare(dataset: Any, batch: list[Any]) -> None:
    """Refuse the script if the ranks draw different indices, or load different samples for the first one.

    Args:
        dataset: a map-style data set. The first sample of the batch is loaded twice.
        batch: the indices of the first batch, which is not empty.
    """
    mine = np.array([zlib.crc32(repr(batch).encode()), _fingerprint(dataset, batch[0])], np.int64)
    orders, samples = distrun.allgather(mine, name="auto.first_batch").reshape(-1, 2).T.tolist()
    if len(set(orders)) > 1:
        refuse(
            "the sampler of the DataLoader does not draw the same samples on all ranks: it must draw from random, "
            "numpy.random or torch's generators, or from one with a seed",
            ("sampler = MySampler(dataset, generator=torch.Generator().manual_seed(0))",),
        )
    if len({sample for sample in samples if sample >= 0}) > 1:
        refuse(
            "the data set is not the same on all ranks: it must be drawn from random, numpy.random or torch's "
            "generators, or from one with a seed",
            ("rng = numpy.random.default_rng(seed=0)",),
        )


def collated(loader: DataLoader[Any], indices: list[Any]) -> Any:
    """Return the batch that a DataLoader makes of the samples at `indices`, or None if it is not reproducible.

    It is not if loading a sample twice gives different results, as with random transforms. This may draw from the
    generators.
    """
    dataset: Any = loader.dataset
    first, again = ([*_pieces(dataset[indices[0]])] for _ in range(2))
    if first != again:
        return None
    return loader.collate_fn([dataset[index] for index in indices])


def _fingerprint(dataset: Any, index: Any) -> int:
    """Return a number that depends on all of a sample, or -1 if it differs from load to load, or fails to load."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    found = set()
    try:
        for _ in range(2):
            value = 0
            for piece in _pieces(dataset[index]):
                value = zlib.crc32(piece, value)
            found.add(value)
            torch.set_rng_state(states[0])
            random.setstate(states[1])
            np.random.set_state(states[2])
    except Exception:  # raised by the data set, which will raise it again when the sample is loaded for training
        return -1
    return found.pop() if len(found) == 1 else -1


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        if value.layout is torch.strided:
            yield value.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, Mapping):
        for key in value:
            yield repr(key).encode()
            yield from _pieces(value[key])
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _pieces(each)
    elif isinstance(value, (str, bytes, int, float, np.generic)):
        yield repr(value).encode()
