"""The communication that checkpoints need: by distrun, by torch.distributed, or none for a single process.

Tensors are sent as bytes, and notes as JSON. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

from distrun.checkpoint.numpy_arrays import Bytes
from distrun.errors import UsageError
from distrun.runtime import collectives
from distrun.runtime.world import world
from distrun.runtime.world.environments import detect


class Ranks:
    """The ranks of a job, which all make the same calls in the same order. This base is for the only rank."""

    rank, size = 0, 1

    def broadcast(self, data: Bytes, root: int) -> None:
        """Overwrite `data`, of the same length on all ranks, with the root's."""

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of all ranks, in rank order."""
        return [data]


def gather_notes(ranks: Ranks, note: Any) -> list[Any]:
    """Return the notes of all ranks, in rank order. A note is anything that JSON can hold."""
    return [json.loads(each) for each in ranks.gather(json.dumps(note).encode("ascii"))]


def broadcast_note(ranks: Ranks, note: Any, root: int) -> Any:
    """Return the root's note. The other ranks' notes are ignored."""
    payload = np.frombuffer(json.dumps(note).encode("ascii") if ranks.rank == root else b"", np.uint8)
    length = np.array([payload.size], np.int64).view(np.uint8)
    ranks.broadcast(length, root)
    data = payload.copy() if ranks.rank == root else np.empty(int(length.view(np.int64)[0]), np.uint8)
    ranks.broadcast(data, root)
    return json.loads(data.tobytes())


class _Distrun(Ranks):
    """The ranks of distrun's world."""

    def __init__(self) -> None:
        self.rank, self.size = world.rank(), world.size()

    def broadcast(self, data: Bytes, root: int) -> None:
        if data.size:
            collectives.broadcast_(data, root, "checkpoint.broadcast")

    def gather(self, data: bytes) -> list[bytes]:
        lengths = collectives.allgather(np.array([len(data)], np.int64), "checkpoint.lengths")
        gathered = collectives.allgather(np.frombuffer(data, np.uint8), "checkpoint.notes").tobytes()
        stops = [int(stop) for stop in np.cumsum(lengths)]
        return [gathered[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


class _TorchDistributed(Ranks):
    """The ranks of the default process group of torch.distributed, for scripts that do not use distrun."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # "cpu:gloo,cuda:nccl" where there are several.
        takes_host_memory = any(name in dist.get_backend() for name in ("gloo", "mpi", "cpu"))
        self._device = torch.device("cpu" if takes_host_memory else "cuda")

    def broadcast(self, data: Bytes, root: int) -> None:
        if data.size:
            tensor = self._torch.from_numpy(data)
            moved = tensor.to(self._device)
            self._dist.broadcast(moved, root)
            tensor.copy_(moved)

    def gather(self, data: bytes) -> list[bytes]:
        lengths = [int(each[0]) for each in self._all_gathered(np.array([len(data)], np.int64))]
        padded = np.zeros(max(lengths), np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        rows = self._all_gathered(padded)
        return [row.tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]

    def _all_gathered(self, row: Any) -> list[Any]:
        tensor = self._torch.from_numpy(row).to(self._device)
        rows = [self._torch.empty_like(tensor) for _ in range(self.size)]
        self._dist.all_gather(rows, tensor)
        return [each.cpu().numpy() for each in rows]


def present() -> Ranks:
    """Return the ranks of the job.

    Raises:
        UsageError: there are several, and they cannot communicate yet.
    """
    if world.is_initialized():
        return _Distrun()
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return _TorchDistributed()
    size = detect(os.environ).topology().size
    if size > 1:
        raise UsageError(
            f"this is one of {size} ranks, which cannot agree on a checkpoint yet: call distrun.init(), or "
            "torch.distributed.init_process_group(), before"
        )
    return Ranks()
