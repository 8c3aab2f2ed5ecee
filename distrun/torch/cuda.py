"""GPUs as torch has them: everything that this package asks of `torch.cuda` is asked here."""

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

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the time, and asked for every gradient


def bind(index: int) -> None:
    """Make GPU `index` torch's current one, so that this process takes no memory of the others. Not in a torch without
    CUDA."""
    if torch.cuda.is_available():
        torch.cuda.set_device(index)


def kind(tensor: Tensor) -> str:
    """The kind of device a tensor lies on, as a request calls it: CPU, CUDA, or another, which cannot travel."""
    return tensor.device.type


as_array = Tensor.numpy
"""Returns a tensor's memory as an array; raises TypeError or RuntimeError if it is not on the CPU, is no tensor, or is
more than its memory."""


def check(tensor: Tensor) -> None:
    """Refuse a tensor that lies neither on the CPU nor on this rank's own GPU."""
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
    """Whether what the calling thread queues is being recorded into a CUDA graph."""
    return torch.cuda.is_current_stream_capturing()


class TorchArena:
    """torch's memory and streams on GPU `index`; the owner of a buffer is a flat tensor."""

    def __init__(self, index: int) -> None:
        self._index = index

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return torch.device(CUDA, self._index)

    def current_stream(self) -> int:
        """The stream on which torch queues what the calling thread does."""
        if _raw_stream is not None:
            return int(_raw_stream(self._index))
        return torch.cuda.current_stream(self._index).cuda_stream

    def keep(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor made on another stream: it is not used again before the work is done that has
        been queued on the current stream when the tensor is let go of."""
        tensor.record_stream(torch.cuda.current_stream(self._index))

    def bind(self) -> None:
        """Make the GPU the current one of the calling thread."""
        bind(self._index)

    def moment(self) -> StreamPoint:
        """Return the moment when the current stream has done what is queued there by now."""
        return StreamPoint(self, torch.cuda.current_stream(self._index).record_event())

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Let what is queued on the current stream from now on come after an event."""
        torch.cuda.current_stream(self._index).wait_event(event)

    def empty(self, count: int, dtype: np.dtype[Any], stream: int) -> DeviceBuffer:
        """Memory from torch's pool of `stream`: what is freed there goes to what is queued there next."""
        if stream == self.current_stream():
            owner = self._empty(count, dtype)
        else:
            # The device first: leaving `stream` on another one would make that current again, and with it create its
            # context.
            with torch.cuda.device(self._index):
                where = self._stream(stream)
                with torch.cuda.stream(where):
                    owner = self._empty(count, dtype)
        return DeviceBuffer(owner.data_ptr(), count, dtype, owner)

    def _empty(self, count: int, dtype: np.dtype[Any]) -> Tensor:
        return torch.empty(count, dtype=getattr(torch, dtype.name), device=self.device)

    def _stream(self, stream: int) -> torch.cuda.Stream:
        if not stream:  # which ExternalStream takes for none
            return torch.cuda.default_stream(self._index)
        return torch.cuda.ExternalStream(stream, self._index)  # type: ignore[no-untyped-call]


class StreamPoint:
    """A moment in the order of one stream, after which other streams may go on."""

    def __init__(self, arena: TorchArena, event: torch.cuda.Event) -> None:
        """`event` was recorded on the stream that is current."""
        self._arena = arena
        self._event = event
        self._stream = arena.current_stream()

    def wait(self) -> None:
        """Let what is queued on the current stream from now on come after the moment."""
        if self._arena.current_stream() != self._stream:
            self._arena.wait_for(self._event)


def arena() -> TorchArena:
    """The arena of this rank's GPU."""
    return TorchArena(world.device().index)
