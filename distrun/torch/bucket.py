"""A bucket of gradients, and the ordinary kind: dense gradients in one buffer, reduced in place.

The buffer holds the gradients one after the other, each in the memory layout of its parameter, and behind them one flag per
parameter: whether this rank has a gradient for it. The flags are reduced with the rest, so every rank learns for nothing
which parameters have a gradient anywhere; one that has none keeps `grad` None, as it would in a single process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.handles import Handle
from distrun.runtime.reduction import Max, Min, Product, ReduceOp
from distrun.torch.operations import Call
from distrun.torch.tensors import empty_array, tensor_of

Start = Callable[[Handle], Handle]
"""`operations.submit`, or `operations.run` where the caller waits next."""


class Bucket(ABC):
    """Some parameters whose gradients travel together."""

    def __init__(self, call: Call, places: Sequence[int], parameters: Sequence[Tensor]) -> None:
        """`places`: where the parameters stand in the reducer's list."""
        self.call = call
        self.places = tuple(places)
        self.parameters = list(parameters)
        self.waiting_for = set(places)
        self.is_sent = False

    @abstractmethod
    def send(self, start: Start) -> None:
        """Start reducing the gradients that are there. They stay as they are, and in place, until `receive`."""

    @abstractmethod
    def receive(self) -> None:
        """Wait for the reduction and make its results the parameters' gradients."""

    def holds(self, gradient: Tensor) -> bool:
        """Whether `gradient` lies in memory that `send` may write to."""
        return False

    def reset(self) -> None:
        """Make ready for the next backward pass."""
        self.waiting_for = set(self.places)
        self.is_sent = False


FLAGS: dict[ReduceOp, tuple[float, float]] = {Max: (1, 0), Min: (-1, 0), Product: (0, 1)}
"""The flags of a gradient that is there and of one that is not, such that after the reduction the second value is found only
where no rank has one. (1, 0) for those not listed."""


class _Buffer:
    """Memory for the gradients of `parameters` and their flags."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        counts = [parameter.numel() for parameter in parameters]
        dtype = parameters[0].dtype
        array = empty_array(sum(counts) + len(counts), dtype)
        whole = tensor_of(array, dtype, (array.size,))
        *parts, self.flags = torch.split(whole, [*counts, len(counts)])
        self.arrays = (array,)
        self.views = [_laid_out(part, parameter) for part, parameter in zip(parts, parameters, strict=True)]
        self.targets = [*self.views, self.flags]
        self.start = whole.data_ptr()
        self.stop = self.start + array.nbytes


def _laid_out(part: Tensor, parameter: Tensor) -> Tensor:
    """A view of the flat `part` with the shape and, if dense, the strides of `parameter`: optimizers are faster for it."""
    if parameter.is_contiguous():
        return part.view(parameter.shape)
    strides = torch.empty_like(parameter, memory_format=torch.preserve_format, device="meta").stride()
    return part.as_strided(parameter.shape, strides)


class DenseBucket(Bucket):
    """Gradients of one dtype in one buffer: one copy fills it, one operation reduces it in place, nothing is copied back.

    After the reduction the gradients are views of the buffer. If one still is when the buffer is to be filled again, a
    second buffer is used: what is being reduced must never be what `parameter.grad` points at.
    """

    def __init__(
        self, call: Call, places: Sequence[int], parameters: Sequence[Tensor], sparse_as_dense: bool = False
    ) -> None:
        super().__init__(call, places, parameters)
        self._sparse_as_dense = sparse_as_dense
        self._buffers = [_Buffer(parameters)]
        self._buffer = self._buffers[0]
        self._request = call.request("allreduce", [self._flat(self._buffer)])
        self._present, self._absent = FLAGS.get(call.op, (1.0, 0.0))
        self._all_present = torch.full_like(self._buffer.flags, self._present)
        self._handle: Handle | None = None

    @staticmethod
    def _flat(buffer: _Buffer) -> Tensor:
        return tensor_of(buffer.arrays[0], buffer.flags.dtype, (-1,))

    @torch.no_grad()
    def send(self, start: Start) -> None:
        gradients = [parameter.grad for parameter in self.parameters]
        there = [gradient for gradient in gradients if gradient is not None and not gradient.is_sparse]
        buffer = self._buffer = self._free_buffer(there)
        if len(there) == len(gradients):
            torch._foreach_copy_(buffer.targets, [*there, self._all_present])
        else:
            self._fill_with_gaps(buffer, gradients)
        engine = world.engine()
        self._handle = start(Handle(engine, self._request, buffer.arrays, buffer.arrays))
        self.is_sent = True

    def _free_buffer(self, gradients: Sequence[Tensor]) -> _Buffer:
        """A buffer that none of the gradients lies in."""
        addresses = [gradient.data_ptr() for gradient in gradients]
        for buffer in self._buffers:
            start, stop = buffer.start, buffer.stop
            if all(not start <= address < stop for address in addresses):
                return buffer
        self._buffers.append(_Buffer(self.parameters))
        return self._buffers[-1]

    def _fill_with_gaps(self, buffer: _Buffer, gradients: Sequence[Tensor | None]) -> None:
        buffer.flags.fill_(self._present)
        for index, (view, gradient) in enumerate(zip(buffer.views, gradients, strict=True)):
            if gradient is None:
                view.zero_()
                buffer.flags[index] = self._absent
            else:
                view.copy_(self._dense(gradient, index))

    def _dense(self, gradient: Tensor, index: int) -> Tensor:
        if gradient.is_sparse and not self._sparse_as_dense:
            raise UsageError(
                f"parameter {self.places[index]} has a sparse gradient now and had none when the buckets were planned: pass "
                "sparse_as_dense=True to DistributedOptimizer"
            )
        return gradient.to_dense() if gradient.is_sparse else gradient

    def receive(self) -> None:
        handle, self._handle = self._handle, None
        assert handle is not None
        handle.wait()
        buffer = self._buffer
        flags = buffer.flags.tolist()
        if self._absent in flags:
            for parameter, view, flag in zip(self.parameters, buffer.views, flags, strict=True):
                if flag != self._absent:
                    parameter.grad = view
            return
        for parameter, view in zip(self.parameters, buffer.views, strict=True):
            parameter.grad = view

    def holds(self, gradient: Tensor) -> bool:
        return not gradient.is_sparse and any(
            buffer.start <= gradient.data_ptr() < buffer.stop for buffer in self._buffers
        )
