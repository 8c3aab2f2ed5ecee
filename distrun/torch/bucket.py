"""A bucket of gradients, and the ordinary kind on the CPU: dense gradients in one buffer, reduced in place.

The buffer holds the gradients one after the other, each in the memory layout of its parameter, and behind them one flag per
parameter: whether this rank has a gradient for it. The flags are reduced with the rest, so every rank learns for nothing
which parameters have a gradient anywhere; one that has none keeps `grad` None, as it would in a single process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from distrun.errors import CollectiveError, UsageError
from distrun.runtime import world
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Max, Min, Product, ReduceOp
from distrun.torch.operations import request_of
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

    def take(self, place: int) -> None:  # noqa: B027 - most kinds do it all in `send`
        """The gradient of the parameter at `place` is complete, for what the calling thread queues on the GPU from now on.

        A bucket may take it at once, while it is in cache.
        """

    @abstractmethod
    def send(self, start: Start) -> None:
        """Start reducing the gradients that are there, and those that were taken."""

    @abstractmethod
    def receive(self) -> None:
        """Wait for the reduction and make its results the parameters' gradients."""

    def forfeit(self, start: Start) -> None:
        """Take part in a reduction that others may have begun, though a failed backward pass left nothing valid to give."""
        self.send(start)

    @abstractmethod
    def drop(self) -> None:
        """Wait for the reduction and forget its results."""

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


AT_ONCE = 4 << 10
"""Elements from which a gradient is copied for itself, as soon as it is there."""


class _Buffer:
    """Memory for the gradients of `parameters` and their flags."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        counts = [parameter.numel() for parameter in parameters]
        dtype = parameters[0].dtype
        array = empty_array(sum(counts) + len(counts), dtype)
        whole = tensor_of(array, dtype, (array.size,))
        *parts, self.flags = torch.split(whole, [*counts, len(counts)])
        self.arrays = (array,)
        self.views = [laid_out(part, parameter) for part, parameter in zip(parts, parameters, strict=True)]
        self.addresses = [view.data_ptr() for view in self.views]
        self.start = whole.data_ptr()
        self.stop = self.start + array.nbytes


def failed_elsewhere(name: str | None) -> CollectiveError:
    """The error when a rank has forfeited the reduction called `name`."""
    return CollectiveError(
        f"{name}: backward() failed on another rank, so there are no gradients of all ranks together: look there for the "
        "cause; zero_grad() and the next backward() start anew"
    )


def laid_out(part: Tensor, parameter: Tensor) -> Tensor:
    """A view of the flat `part` with the shape and, if dense, the strides of `parameter`: optimizers are faster for it."""
    if parameter.is_contiguous():
        return part.view(parameter.shape)
    strides = torch.empty_like(parameter, memory_format=torch.preserve_format, device="meta").stride()
    return part.as_strided(parameter.shape, strides)


class DenseBucket(Bucket):
    """Gradients of one dtype in one buffer, reduced in place; nothing is copied back.

    A large gradient is copied into its place in the buffer as soon as it is complete, and let go of: so its memory is still
    in cache when it is read, and serves again for the next gradient instead of being fetched anew from the system. Small
    ones are copied together, with one call, when the bucket is sent. After the
    reduction the gradients are views of the buffer. One that still is when the next is added to it (`zero_grad` with
    `set_to_none=False`, or accumulation) lies in its place already and is not copied at all.

    Invariant: what is being reduced is never what `parameter.grad` points at. It is None from `take` to `receive`.
    """

    def __init__(
        self, call: Call, places: Sequence[int], parameters: Sequence[Tensor], sparse_as_dense: bool = False
    ) -> None:
        super().__init__(call, places, parameters)
        self._sparse_as_dense = sparse_as_dense
        self._buffer = buffer = _Buffer(parameters)
        flat = tensor_of(buffer.arrays[0], buffer.flags.dtype, (-1,))
        self._request = request_of(call, [flat])
        self._present, self._absent = FLAGS.get(call.op, (1.0, 0.0))
        self._index = {place: index for index, place in enumerate(self.places)}
        self._taken: set[int] = set()  # indices
        self._handle: Handle | None = None

    def take(self, place: int) -> None:
        index = self._index[place]
        parameter = self.parameters[index]
        gradient = parameter.grad
        if parameter.numel() < AT_ONCE or gradient is None or gradient.is_sparse:
            return  # `send` sees to it
        if gradient.data_ptr() != self._buffer.addresses[index]:
            self._buffer.views[index].copy_(gradient.detach())
        parameter.grad = None
        self._taken.add(index)

    @torch.no_grad()
    def send(self, start: Start) -> None:
        buffer = self._buffer
        buffer.flags.fill_(self._present)
        if len(self._taken) < len(self.parameters):
            self._take_rest()
        self._handle = start(Handle(world.engine(), self._request, buffer.arrays, buffer.arrays))
        self.is_sent = True

    def _take_rest(self) -> None:
        """Copy the gradients that were not taken yet with one call: there may be very many, and small."""
        targets, sources = [], []
        buffer = self._buffer
        for index, parameter in enumerate(self.parameters):
            if index in self._taken:
                continue
            gradient = parameter.grad
            if gradient is None:
                buffer.views[index].zero_()
                buffer.flags[index] = self._absent
            elif gradient.is_sparse or gradient.data_ptr() != buffer.addresses[index]:
                targets.append(buffer.views[index])
                sources.append(self._dense(gradient, index) if gradient.is_sparse else gradient)
            parameter.grad = None
        if targets:
            torch._foreach_copy_(targets, sources)

    def _dense(self, gradient: Tensor, index: int) -> Tensor:
        if not self._sparse_as_dense:
            raise UsageError(
                f"parameter {self.places[index]} has a sparse gradient now and had none when the buckets were planned: pass "
                "sparse_as_dense=True to DistributedOptimizer"
            )
        return gradient.to_dense()

    def forfeit(self, start: Start) -> None:
        self._buffer.flags.fill_(float("nan"))  # so are then the flags of all ranks
        self._handle = start(Handle(world.engine(), self._request, self._buffer.arrays, self._buffer.arrays))
        self.is_sent = True

    def drop(self) -> None:
        handle, self._handle = self._handle, None
        self._taken.clear()
        if handle is not None:
            handle.wait()

    def receive(self) -> None:
        self.drop()
        buffer = self._buffer
        flags = buffer.flags.tolist()
        if flags[0] != flags[0]:
            raise failed_elsewhere(self._request.name)
        if self._absent in flags:
            for parameter, view, flag in zip(self.parameters, buffer.views, flags, strict=True):
                if flag != self._absent:
                    parameter.grad = view.detach()
            return
        for parameter, view in zip(self.parameters, buffer.views, strict=True):
            parameter.grad = view.detach()  # `grad.data = ...`, as in `Module.to`, must not change the view itself

    def holds(self, gradient: Tensor) -> bool:
        return not gradient.is_sparse and self._buffer.start <= gradient.data_ptr() < self._buffer.stop
