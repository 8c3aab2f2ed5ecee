"""torch's GPUs: the only module of this package that uses `torch.cuda`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.operations.request import CPU, CUDA
from distrun.runtime.world import world

__all__ = [
    "CPU",
    "CUDA",
    "StreamPoint",
    "TorchArena",
    "arena",
    "as_array",
    "bind",
    "check",
    "is_capturing",
    "is_on_gpu",
    "kind",
    "new",
]

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # in a tenth of the time, for every gradient


def bind(index: int) -> None:
    """Make GPU `index` torch's current one, so that this process uses no memory on other GPUs. Does nothing in a torch
    without CUDA."""
    if torch.cuda.is_available():
        torch.cuda.set_device(index)


def kind(tensor: Tensor) -> str:
    """Return the kind of a tensor's device, as in a request: CPU, CUDA, or another that cannot travel."""
    return tensor.device.type


def is_on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is on a GPU. False for what is no tensor."""
    return getattr(tensor, "is_cuda", False)


as_array = Tensor.numpy
"""Returns a tensor's memory as an array. Raises TypeError or RuntimeError if it is not a tensor, not on the CPU, or
more than its memory: with a gradient, or conjugate."""


new = Tensor.new_empty
"""Returns an uninitialised tensor of a shape, with the dtype and the device of another one, for use on the current
stream."""


def check(tensor: Tensor) -> None:
    """Refuse a tensor that is neither on the CPU nor on this rank's own GPU."""
    device = tensor.device
    if kind(tensor) not in (CPU, CUDA):
        raise UsageError(
            f"a tensor on {device} cannot travel, one on the CPU or on this rank's GPU can: use .cpu() or .cuda()"
        )
    own = world.device()
    if device.type == own.name == CUDA and device.index != own.index:
        raise UsageError(
            f"a tensor on {device} cannot travel, as the GPU of this rank is {own}: use .to('{own}'), or .cuda() after "
            "init()"
        )


def is_capturing() -> bool:
    """Whether work that this thread queues is being captured into a CUDA graph."""
    return torch.cuda.is_current_stream_capturing()


class TorchArena:
    """torch's memory and streams on GPU `index`. The owner of a buffer is a flat tensor."""

    def __init__(self, index: int) -> None:
        self._index = index

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return torch.device(CUDA, self._index)

    def current_stream(self) -> int:
        """The stream on which torch queues this thread's work."""
        if _raw_stream is not None:
            return int(_raw_stream(self._index))
        return torch.cuda.current_stream(self._index).cuda_stream

    def keep(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor that was made on another stream. When the tensor is freed, torch reuses its
        memory only after the work that is queued on the current stream by then."""
        tensor.record_stream(torch.cuda.current_stream(self._index))

    def bind(self) -> None:
        """Make the GPU the current one of this thread."""
        bind(self._index)

    def moment(self) -> StreamPoint:
        """Return the point in the current stream after the work queued so far."""
        return StreamPoint(self, torch.cuda.current_stream(self._index).record_event())

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Make all later work on the current stream wait for an event."""
        torch.cuda.current_stream(self._index).wait_event(event)

    def empty(self, count: int, dtype: np.dtype[Any], stream: int) -> DeviceBuffer:
        """Return memory from torch's pool for `stream`, where freed memory is reused by the work queued next."""
        if stream == self.current_stream():
            owner = self._empty(count, dtype)
        else:
            # The device first: on leaving `torch.cuda.stream`, torch makes the previous device current again, and on
            # another device this would create a context.
            with torch.cuda.device(self._index):
                where = self._stream(stream)
                with torch.cuda.stream(where):
                    owner = self._empty(count, dtype)
        return DeviceBuffer(owner.data_ptr(), count, dtype, owner)

    def _empty(self, count: int, dtype: np.dtype[Any]) -> Tensor:
        return torch.empty(count, dtype=getattr(torch, dtype.name), device=self.device)

    def _stream(self, stream: int) -> torch.cuda.Stream:
        if not stream:  # 0 is the default stream, which ExternalStream takes for no stream
            return torch.cuda.default_stream(self._index)
        return torch.cuda.ExternalStream(stream, self._index)  # type: ignore[no-untyped-call]


class StreamPoint:
    """A point in the work of one stream that other streams can wait for."""

    def __init__(self, arena: TorchArena, event: torch.cuda.Event) -> None:
        """`event` was just recorded on the current stream."""
        self._arena = arena
        self._event = event
        self._stream = arena.current_stream()

    def wait(self) -> None:
        """Make all later work on the current stream wait for this point."""
        if self._arena.current_stream() != self._stream:
            self._arena.wait_for(self._event)


_arena_of = lru_cache(TorchArena)


def arena() -> TorchArena:
    """Return the arena of this rank's GPU."""
    return _arena_of(world.device().index)
