"""Broadcasts of many tensors at the speed of one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world
from distrun.tensor_fusion.packing import small_as_one
from distrun.torch import cuda
from distrun.torch.copies import broadcast_async_
from distrun.torch.tensors import empty, is_flat


def broadcast_tensors(
    tensors: Sequence[Tensor], root_rank: int, name: str, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite tensors with the root's, in place.

    Args:
        tensors: of any shapes and dtypes, on the CPU or on this rank's GPU, with the same sizes on all ranks.
        root_rank: the rank, in the world, whose tensors they are.
        name: how the ranks match the operations.
        process_set: the ranks that take part.

    Raises:
        UsageError: a tensor lies elsewhere.
        CollectiveError: the ranks have other sizes, or one is gone.
    """
    for tensor in tensors:
        if cuda.kind(tensor) != cuda.CPU:
            cuda.check(tensor)
    is_root = world.rank() == root_rank
    copies = [tensor.detach().resolve_conj().resolve_neg().contiguous() for tensor in tensors]
    flats = [copy.view(-1).view(torch.uint8) for copy in copies if copy.numel()]
    sent: list[Tensor] = []
    finishing = []
    for kind in (cuda.CPU, cuda.CUDA):
        own = [flat for flat in flats if cuda.kind(flat) == kind]
        fused, finish = small_as_one(own, is_root, partial(empty, kind, dtype=torch.uint8), torch.cat)
        sent += fused
        finishing.append(finish)
    handles = [broadcast_async_(flat, root_rank, f"{name}.{place}", process_set) for place, flat in enumerate(sent)]
    for handle in handles:
        handle.wait()
    for finish in finishing:
        finish()
    if not is_root:
        for tensor, copy in zip(tensors, copies, strict=True):
            if not is_flat(tensor):
                tensor.detach().copy_(copy)
