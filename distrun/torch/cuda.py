"""GPUs by way of torch: the only module of this package that calls `torch.cuda`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.operations.request import CPU, CUDA
from distrun.runtime.world import world

__all__ = ["CPU", "CUDA", "StreamPoint", "TorchArena", "arena", "as_array", "bind", "check", "is_capturing", "kind"]

# Takes a tenth of the time of `torch.cuda.current_stream`, and is called for every gradient.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def bind(index: int) -> None:
    """Make GPU `index` torch's current one, so that this process takes no memory of other GPUs. Does nothing in a torch
    without CUDA."""
    if torch.cuda.is_available():
        torch.cuda.set_device(index)


def kind(tensor: Tensor) -> str:
    """Return the name of a tensor's device in requests: CPU, CUDA, or another one, whose tensors cannot travel."""
    return tensor.device.type


as_array = Tensor.numpy
"""Returns a tensor's memory as an array. Raises TypeError or RuntimeError if the argument is not a tensor, not on the
CPU, or more than its memory (for example, if it requires a gradient)."""


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
    """Return whether the current stream of this thread is being captured into a CUDA graph."""
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
        """Return the stream on which torch queues the work of this thread."""
        if _raw_stream is not None:
            return int(_raw_stream(self._index))
        return torch.cuda.current_stream(self._index).cuda_stream

    def keep(self, tensor: Tensor) -> None:
        """Protect the memory of a tensor made on another stream: once the tensor is freed, torch does not reuse its
        memory before the work is done that was queued on the current stream by then."""
        tensor.record_stream(torch.cuda.current_stream(self._index))

    def bind(self) -> None:
        """Make the GPU the current one of this thread."""
        bind(self._index)

    def moment(self) -> StreamPoint:
        """Return the point in the current stream after the work that is queued there now."""
        return StreamPoint(self, torch.cuda.current_stream(self._index).record_event())

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Make work that is queued on the current stream later wait for an event."""
        torch.cuda.current_stream(self._index).wait_event(event)

    def empty(self, count: int, dtype: np.dtype[Any], stream: int) -> DeviceBuffer:
        """Return memory from torch's pool of `stream`: freed memory is reused in the order of that stream."""
        if stream == self.current_stream():
            owner = self._empty(count, dtype)
        else:
            # The device first: to leave the context of `stream` while another GPU is current would make that GPU
            # current again, and so create a CUDA context on it.
            with torch.cuda.device(self._index):
                where = self._stream(stream)
                with torch.cuda.stream(where):
                    owner = self._empty(count, dtype)
        return DeviceBuffer(owner.data_ptr(), count, dtype, owner)

    def _empty(self, count: int, dtype: np.dtype[Any]) -> Tensor:
        return torch.empty(count, dtype=getattr(torch, dtype.name), device=self.device)

    def _stream(self, stream: int) -> torch.cuda.Stream:
        if not stream:  # ExternalStream takes 0 for no stream
            return torch.cuda.default_stream(self._index)
        return torch.cuda.ExternalStream(stream, self._index)  # type: ignore[no-untyped-call]


class StreamPoint:
    """A point in the order of one stream that other streams can wait for."""

    def __init__(self, arena: TorchArena, event: torch.cuda.Event) -> None:
        """`event` was recorded on the current stream."""
        self._arena = arena
        self._event = event
        self._stream = arena.current_stream()

    def wait(self) -> None:
        """Make work that is queued on the current stream later wait for this point."""
        if self._arena.current_stream() != self._stream:
            self._arena.wait_for(self._event)


def arena() -> TorchArena:
    """Return the arena of this rank's GPU."""
    return TorchArena(world.device().index)
