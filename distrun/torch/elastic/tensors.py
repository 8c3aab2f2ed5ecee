"""Broadcasts of many tensors at the speed of one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distrun.elastic.arrays import LARGE
from distrun.runtime.world import world
from distrun.torch import cuda
from distrun.torch.copies import broadcast_async_
from distrun.torch.tensors import empty


def broadcast_tensors(tensors: Sequence[Tensor], root_rank: int, name: str) -> None:
    """Overwrite tensors with those of a rank, in place.

    Args:
        tensors: of any shapes and dtypes, on the CPU or on this rank's GPU, with the same sizes on all ranks.
        root_rank: the rank whose tensors they are.
        name: how the ranks match the operations.

    Raises:
        CollectiveError: the ranks have other sizes, or one is gone.
    """
    is_root = world.rank() == root_rank
    flats = [tensor.detach().contiguous() for tensor in tensors]
    pieces = [flat.view(-1).view(torch.uint8) for flat in flats if flat.numel()]
    handles = [
        broadcast_async_(piece, root_rank, f"{name}.{place}")
        for place, piece in enumerate(pieces)
        if piece.numel() >= LARGE
    ]
    for kind in (cuda.CPU, cuda.CUDA):
        small = [piece for piece in pieces if piece.numel() < LARGE and cuda.kind(piece) == kind]
        if not small:
            continue
        packed = torch.cat(small) if is_root else empty(kind, sum(piece.numel() for piece in small), torch.uint8)
        broadcast_async_(packed, root_rank, f"{name}.{kind}").wait()
        if not is_root:
            for piece, come in zip(small, torch.split(packed, [piece.numel() for piece in small]), strict=True):
                piece.copy_(come)
    for handle in handles:
        handle.wait()
    if not is_root:
        for tensor, flat in zip(tensors, flats, strict=True):
            if not tensor.is_contiguous():
                tensor.detach().copy_(flat)
