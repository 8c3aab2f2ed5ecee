"""The samples of a batch: all ranks must have the same. The whole batch is collated, or put together from its parts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import distrun
from distrun.auto.refusing import refuse
from distrun.auto.torch import generators


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
    found = set()
    try:
        for _ in range(2):
            with generators.kept():
                found.add(zlib.crc32(b"".join(_pieces(dataset[index]))))
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


# Whole batches from parts ---------------------------------------------------------------------------------------------


class _UnknownError(Exception):
    """A value does not show how it was made from samples."""


def merged(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Return the whole batch, given the ranks' parts, or None if it cannot be put together.

    Args:
        parts: what a DataLoader gave each rank: tensors, numbers and text in nested containers.
        sizes: the number of samples in each part.
    """
    try:
        return _merged(parts, sizes)
    except Exception:  # also those that a script's own classes raise when they are compared or created
        return None


def _merged(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise _UnknownError
    if isinstance(first, Tensor):
        return _joined(parts, sizes)
    if isinstance(first, Mapping):
        if any(part.keys() != first.keys() for part in parts):
            raise _UnknownError
        kind: Any = type(first)
        return kind({key: _merged([part[key] for part in parts], sizes) for key in first})
    if isinstance(first, (list, tuple)):
        # With equal parts, a list of this length might as well hold something else than samples.
        if all(len(part) == size for part, size in zip(parts, sizes, strict=True)) and len(set(sizes)) > 1:
            return type(first)(each for part in parts for each in part)  # one for each sample
        if any(len(part) != len(first) for part in parts) or hasattr(first, "_fields"):
            raise _UnknownError
        return type(first)(_merged(each, sizes) for each in zip(*parts, strict=True))
    if all(part == first for part in parts):
        return first
    raise _UnknownError


def _joined(parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    shapes = [tuple(part.shape) for part in parts]
    for dim in range(parts[0].dim()):
        others = {shape[:dim] + shape[dim + 1 :] for shape in shapes}
        if [shape[dim] for shape in shapes] == list(sizes) and len(others) == 1:
            return torch.cat(list(parts), dim)
    raise _UnknownError
