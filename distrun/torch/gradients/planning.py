"""Planning the buckets: the ranks compare their parameters, learn of each other's gradients, and all make the same
plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distrun.contract.settings import current
from distrun.errors import UsageError
from distrun.runtime.collectives import consistency
from distrun.runtime.collectives.compressors import is_builtin
from distrun.runtime.collectives.gradient_settings import GradientSettings
from distrun.tensor_fusion.buckets import (
    DEFAULT_THRESHOLD,
    FIRST_THRESHOLD,
    GradientInfo,
    equal_groups,
    expected_order,
    plan_buckets,
    plan_grouped_buckets,
)
from distrun.tensor_fusion.low_rank import rank_of
from distrun.torch import cuda
from distrun.torch.gradients.bucket import Bucket
from distrun.torch.gradients.dense_bucket import DenseBucket
from distrun.torch.gradients.device_bucket import DeviceBucket
from distrun.torch.gradients.low_rank_bucket import LowRankBucket
from distrun.torch.gradients.odd_buckets import CompressedBucket, SparseBucket
from distrun.torch.gradients.parameters import TrackedParameters

NOTE = 8
"""The size in bytes of the note about tuning that ranks exchange."""

_NONE, _DENSE, _SPARSE = 0, 1, 2  # kinds of gradients; the number of sparse dimensions is added to the last


@dataclass(frozen=True)
class Settings(GradientSettings):
    """The way gradients are reduced, and which of them travel together. See `DistributedOptimizer` for the meaning."""

    groups: int | Sequence[Sequence[Tensor]] = 0
    threshold: int = DEFAULT_THRESHOLD
    first: int = FIRST_THRESHOLD
    note: bytes = bytes(NOTE)
    """This rank's note about tuning the buckets. Zeros: they are not tuned."""


@dataclass(frozen=True)
class Agreement:
    """The facts about all ranks' gradients that the ranks have exchanged. All ranks make the same plan from them."""

    kinds: Sequence[int]
    """The kind of each gradient on any rank: none, dense or sparse."""
    order: Sequence[int]
    """The places of parameters, in the order in which rank 0 expects their gradients."""
    note: bytes
    """Rank 0's note about tuning."""
    wants_direct: bool = False
    """Whether rank 0's user wants direct passes (`DISTRUN_DIRECT_BUCKETS`)."""


def agree(name: str, parameters: TrackedParameters, settings: Settings, arrived: Iterable[int]) -> Agreement:
    """Compare the parameters with the other ranks', and exchange the kinds and the order of gradients.

    Args:
        name: the prefix of the names of the operations.
        parameters: this rank's parameters.
        settings: how gradients are reduced.
        arrived: the places of parameters, in the order in which their gradients came here. Rank 0's order is used.

    Raises:
        MismatchError: the ranks do not have the same parameters.
        UsageError: a CUDA graph is being captured.
    """
    tensors = parameters.tensors
    devices = [cuda.kind(parameter) for parameter in tensors]
    if cuda.CUDA in devices and cuda.is_capturing():
        raise UsageError(
            "the ranks have not compared these parameters yet, which cannot be captured into a CUDA graph: run some "
            "whole steps, torch's documentation says 3, before the capture"
        )
    count = len(tensors)
    own = np.array([_kind(parameter) for parameter in tensors], np.int8)
    order = np.array(expected_order(count, arrived), np.int32)
    notes = consistency.compare(
        [_entry(*each) for each in zip(parameters.names, tensors, devices, strict=True)],
        "the parameters of the optimizer",
        f"{name}.parameters",
        settings.note + bytes([current().direct_buckets]) + own.tobytes() + order.tobytes(),
        settings.process_set,
    )
    start, stop, first = NOTE + 1, NOTE + 1 + count, notes[0]
    kinds = np.max([np.frombuffer(note[start:stop], np.int8) for note in notes], axis=0) if count else own
    return Agreement(kinds.tolist(), np.frombuffer(first[stop:], np.int32).tolist(), first[:NOTE], bool(first[NOTE]))


def _kind(parameter: Tensor) -> int:
    gradient = parameter.grad
    if gradient is None:
        return _NONE
    if gradient.layout is torch.strided:
        return _DENSE
    return _SPARSE + gradient.sparse_dim()


def _entry(name: str, parameter: Tensor, device: str) -> str:
    """Return a parameter's entry in the list that the ranks compare."""
    strides = "" if parameter.is_contiguous() else f" strides {parameter.stride()}"
    where = "" if device == cuda.CPU else f" on {device}"
    return consistency.describe(name, parameter.shape, parameter.dtype) + strides + where


def plan(parameters: TrackedParameters, settings: Settings, agreement: Agreement) -> list[list[int]]:
    """Return which gradients travel together, as lists of places, without the sparse ones that travel alone."""
    tensors = parameters.tensors
    items = [
        GradientInfo(parameter.numel() * parameter.element_size(), (parameter.dtype, cuda.kind(parameter)))
        for parameter in tensors
    ]
    alone = () if settings.sparse_as_dense else _sparse_dims(agreement)
    dense = [place for place in agreement.order if place not in alone]
    limits = settings.threshold, settings.first
    groups = _groups(parameters, settings.groups)
    return plan_grouped_buckets(items, groups, dense, *limits) if groups else plan_buckets(items, dense, *limits)


def make_buckets(name: str, parameters: TrackedParameters, settings: Settings, agreement: Agreement) -> list[Bucket]:
    """Make the buckets that the ranks have agreed on."""
    tensors = parameters.tensors
    sparse_dims = _sparse_dims(agreement)
    buckets: list[Bucket] = []
    for number, places in enumerate(plan(parameters, settings, agreement)):
        call = settings.call(f"{name}.bucket.{number}")
        members = [tensors[place] for place in places]
        sparse = {index: sparse_dims[place] for index, place in enumerate(places) if place in sparse_dims}
        if rank := rank_of(settings.wire):
            buckets.append(LowRankBucket(call._replace(wire=""), places, members, rank, sparse))
        elif not is_builtin(settings.compression):
            buckets.append(CompressedBucket(call, places, members, settings.compression, sparse))
        else:
            kind = DenseBucket if cuda.kind(members[0]) == cuda.CPU else DeviceBucket
            names = [parameters.names[place] for place in places]
            buckets.append(kind(call, places, members, names, settings.sparse_as_dense, sparse))
    for place in () if settings.sparse_as_dense else agreement.order:
        if place in sparse_dims:
            call = settings.call(f"{name}.sparse.{parameters.names[place]}")._replace(wire="")
            buckets.append(SparseBucket(call, place, tensors[place], sparse_dims[place]))
    return buckets


def _sparse_dims(agreement: Agreement) -> dict[int, int]:
    """Return the number of sparse dimensions of gradients that are sparse somewhere, by place."""
    return {place: kind - _SPARSE for place, kind in enumerate(agreement.kinds) if kind > _DENSE}


def _groups(parameters: TrackedParameters, groups: int | Sequence[Sequence[Tensor]]) -> list[list[int]]:
    if isinstance(groups, int):
        return equal_groups(len(parameters.tensors), groups) if groups else []
    places = parameters.places
    return [[places[id(tensor)] for tensor in group if id(tensor) in places] for group in groups]
