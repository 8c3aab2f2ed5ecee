"""Buckets of gradients that are reduced together: the base class of all kinds, and of the kinds with one buffer.

A buffer holds dense gradients one after the other, each in the memory layout of its parameter, and after them one flag
per parameter: whether this rank has a gradient for it. The flags are reduced with the rest, so every rank learns at no
cost which parameters have a gradient anywhere. A parameter without one keeps `grad` None, as it would in a single
process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

import torch
from torch import Tensor

from distrun.errors import CollectiveError, UsageError
from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.residuals import Residual
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Min, Product, ReduceOp
from distrun.runtime.operations.request import Request
from distrun.runtime.operations.wire import WITH_FEEDBACK, is_small
from distrun.runtime.world import world
from distrun.torch.operations import request_of

Start = Callable[[Handle], Handle]
"""Starts an operation: `operations.submit`, or `operations.run` if the caller waits next."""


NOT_COUNTED = -1, -1
"""The value of `counts_in` for no graph task on no stream."""


class Bucket(ABC):
    """Some parameters whose gradients travel together."""

    counts_in: tuple[int, int]
    """The graph task and the stream in which a gradient that is not the last need only be struck off `waiting_for`."""
    counted: Collection[int] = ()
    """The places of the parameters of which this holds."""

    @staticmethod
    def current_stream() -> int:
        """Return the stream on which this thread queues its work."""
        return 0

    def __init__(
        self,
        call: Call,
        places: Sequence[int],
        parameters: Sequence[Tensor],
        sparse_dims: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Bundle parameters.

        Args:
            call: the call that reduces their gradients.
            places: the parameters' indices in the reducer's list.
            parameters: at least one.
            sparse_dims: the number of sparse dimensions of sparse gradients, by index in `parameters`.
        """
        self.call = call
        self.places = tuple(places)
        self.parameters = list(parameters)
        self.sparse_dims = dict(sparse_dims)
        self.waiting_for = set(places)
        self.is_sent = False
        self.counts_in = NOT_COUNTED

    def take(self, place: int) -> None:  # noqa: B027 - most kinds do it all in `send`
        """Note that the gradient of the parameter at `place` is complete, for work that this thread queues on the GPU
        later.

        A bucket may copy it at once, while it is in cache.
        """

    @abstractmethod
    def send(self, start: Start) -> None:
        """Start reducing the gradients."""

    @abstractmethod
    def receive(self) -> None:
        """Wait for the reduction and make its results the parameters' gradients."""

    def forfeit(self, start: Start) -> None:
        """Take part, without valid gradients, in a reduction that other ranks may have begun: `backward()` failed
        here."""
        self.send(start)

    @abstractmethod
    def drop(self) -> None:
        """Wait for the reduction and forget its results."""

    def keep(self) -> None:  # noqa: B027 - most kinds lose nothing
        """Note that the received gradients are used, so that their residuals are added to the next ones."""

    def residuals(self) -> dict[int, Residual]:
        """Return the residuals by index."""
        return {}

    def load_residuals(self, residuals: Mapping[int, Residual]) -> None:  # noqa: B027
        """Replace the residuals by these, by index, which another bucket has had."""

    def to_dense(self, gradient: Tensor, index: int) -> Tensor:
        """Return a sparse gradient as a dense one, and remember its number of sparse dimensions."""
        self.sparse_dims[index] = gradient.sparse_dim()
        return gradient.to_dense()

    def as_it_came(self, gradient: Tensor, index: int) -> Tensor:
        """Return a reduced (dense) gradient, made sparse again if it was sparse before."""
        dims = self.sparse_dims.get(index)
        return gradient if dims is None else gradient.to_sparse(dims)

    def holds(self, gradient: Tensor) -> bool:
        """Return whether `gradient` is one that was received, whose memory `send` may overwrite."""
        return False

    def reset(self) -> None:
        """Prepare for the next backward pass."""
        self.counts_in = NOT_COUNTED  # first: see the hooks in `parameters`
        self.waiting_for = set(self.places)
        self.is_sent = False


def flags_of(op: ReduceOp) -> tuple[float, float]:
    """Return the flags of a present and of a missing gradient. After the reduction the second means that no rank has
    it."""
    return {Min: (-1.0, 0.0), Product: (0.0, 1.0)}.get(op, (1.0, 0.0))


def failed_elsewhere(name: str | None) -> CollectiveError:
    """Return the error of ranks whose reduction called `name` another rank has forfeited."""
    return CollectiveError(
        f"{name}: backward() failed on another rank, so there are no gradients of all ranks together: look there for "
        "the cause; zero_grad() and the next backward() start over"
    )


class GradientBuffer:
    """Memory for the gradients of `parameters` and, after them, their flags."""

    def __init__(self, whole: Tensor, slots: Sequence[int], parameters: Sequence[Tensor]) -> None:
        """Divide the flat tensor `whole` into slots with these numbers of elements, one slot for each parameter, and
        one
        element per flag."""
        self._slots, self._parameters = slots, parameters
        self.whole = whole
        self.views = self.cut(whole)
        self.flags = whole[whole.numel() - len(slots) :]
        self.start, self.stop = whole.data_ptr(), whole.data_ptr() + whole.nbytes
        starts = accumulate(slots, initial=0)
        # The addresses of the slots and, at the end, of the flags.
        self.addresses = [self.start + start * whole.element_size() for start in starts]

    def cut(self, whole: Tensor) -> list[Tensor]:
        """Return the gradients in the tensor `whole`, which is divided in the same way as this memory."""
        parts = torch.split(whole, [*self._slots, len(self._slots)])[:-1]
        return [
            _laid_out(part[: parameter.numel()], parameter)
            for part, parameter in zip(parts, self._parameters, strict=True)
        ]

    def request(self, call: Call) -> Request:
        """Return the request for the buffer as a whole.

        If large tensors are quantised on the wire, the request has a shape for each slot and flag, so that small slots
        and the flags travel in full precision.
        """
        request = request_of(call, [self.whole])
        if not world.engine().backend.quantisation_of(request):
            return request
        return request._replace(shapes=tuple((slot,) for slot in (*self._slots, *[1] * len(self._slots))))


def _laid_out(part: Tensor, parameter: Tensor) -> Tensor:
    """Return a view of the flat `part` with the shape and, if dense, the strides of `parameter`: optimizers like the
    same."""
    if parameter.is_contiguous():
        return part.view(parameter.shape)
    strides = torch.empty_like(parameter, memory_format=torch.preserve_format, device="meta").stride()
    return part.as_strided(parameter.shape, strides)


class BufferBucket(Bucket):
    """A bucket of dense gradients of one dtype in one buffer, which is reduced in place.

    Invariant: `parameter.grad` never points into memory that is being reduced. It is None from the moment when the
    bucket takes the gradient until `receive`.
    """

    _buffer: GradientBuffer

    def __init__(
        self,
        call: Call,
        places: Sequence[int],
        parameters: Sequence[Tensor],
        names: Sequence[str],
        sparse_as_dense: bool,
        sparse_dims: Mapping[int, int],
    ) -> None:
        """`names` are the parameters' names, for error messages."""
        super().__init__(call, places, parameters, sparse_dims)
        self._names = names
        self._sparse_as_dense = sparse_as_dense
        self._present, self._absent = flags_of(call.op)
        self._handle: Handle | None = None
        self._feedback: Feedback | None = None
        self._scale = 1.0
        self._loaded: dict[int, Tensor] = {}  # residuals from another bucket or a checkpoint, by index
        self._given: list[int] = []  # the indices of those that were added to the present gradients

    def to_dense(self, gradient: Tensor, index: int) -> Tensor:
        """See `Bucket.to_dense`.

        Raises:
            UsageError: the user has not asked for `sparse_as_dense`.
        """
        if not self._sparse_as_dense:
            raise UsageError(
                f"{self._names[index]} has a sparse gradient now and had none when the buckets were planned: pass "
                "sparse_as_dense=True to DistributedOptimizer"
            )
        return super().to_dense(gradient, index)

    def _feed_back(self, request: Request, factor: float = 1.0) -> None:
        """Use error feedback, if the quantisation of `request`, the bucket's request, needs it.

        `factor` is the factor of the gradients in the buffer.
        """
        self._scale = factor
        if world.engine().backend.quantisation_of(request) == WITH_FEEDBACK:
            self._feedback = Feedback()

    def _add_losses(self, indices: Collection[int]) -> None:
        """Add loaded residuals to the gradients in the buffer at `indices`."""
        self._given = [index for index in self._loaded if index in indices]
        for index in self._given:
            view = self._buffer.views[index]
            view.add_(self._loaded[index].to(view.device), alpha=self._scale)

    def keep(self) -> None:
        if self._feedback is not None:
            self._feedback.keep()
        for index in self._given:
            del self._loaded[index]
        self._given = []

    def _discard(self) -> None:
        if self._feedback is not None:
            self._feedback.discard()
        self._given = []

    def residuals(self) -> dict[int, Residual]:
        residuals = dict(self._loaded)
        owed = None if self._feedback is None else self._feedback.owed(self._buffer.whole.numel())
        if owed is not None:
            lost = self._buffer.cut(torch.from_numpy(owed).div_(self._scale))
            for index, (parameter, part) in enumerate(zip(self.parameters, lost, strict=True)):
                if not is_small(parameter.shape):
                    residuals[index] = part + residuals[index] if index in residuals else part
        return {index: Residual(lost) for index, lost in residuals.items()}

    def load_residuals(self, residuals: Mapping[int, Residual]) -> None:
        if self._feedback is not None:
            self._feedback = Feedback()
        self._loaded = {index: residual.lost for index, residual in residuals.items() if residual.lost is not None}

    def _wait(self) -> bool:
        """Wait for the reduction if one was started, and return whether there was one."""
        handle, self._handle = self._handle, None
        if handle is None:
            return False
        handle.wait()
        return True

    def _give(self, missing: Collection[int]) -> None:
        """Make the views the gradients of their parameters, except at the indices of those that are missing on all
        ranks."""
        for index, (parameter, view) in enumerate(zip(self.parameters, self._buffer.views, strict=True)):
            if index not in missing:
                # A new view, since `grad.data = ...`, as in `Module.to`, must not change the bucket's view itself.
                # `view.detach()` would do as well, but takes 1.5 times as long; under --auto, where `detach` may read a
                # loss, twice as long.
                gradient = view.data
                parameter.grad = self.as_it_came(gradient, index) if self.sparse_dims else gradient

    def holds(self, gradient: Tensor) -> bool:
        """Return whether `gradient` lies in the buffer."""
        return gradient.layout is torch.strided and self._buffer.start <= gradient.data_ptr() < self._buffer.stop
