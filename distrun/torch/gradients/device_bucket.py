"""The bucket for dense gradients on the GPU: packed by one kernel and reduced in place, while the host does not wait.

The slots of the gradients begin at multiples of 16 bytes, so that the kernel can use wide loads and stores. After them
comes one flag per parameter, as in `DenseBucket`. Reading the flags makes the host wait for the device, so they are
read only if a parameter had no gradient on this rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq, is_
from types import MappingProxyType

import torch
from torch import Tensor

from distrun.errors import MismatchError, UsageError
from distrun.runtime.collectives.call import Call
from distrun.runtime.gpu.buffers import GRADIENT_BUCKETS, DeviceBuffer, RepeatedBuffers, note_held
from distrun.runtime.gpu.nccl.reduction import is_supported
from distrun.runtime.gpu.packing import Copies, Packer
from distrun.runtime.operations.request import describe_field
from distrun.runtime.world import world
from distrun.tensor_fusion.device_packing import Piece, rewrite_sources
from distrun.torch import cuda
from distrun.torch.gradients import backward
from distrun.torch.gradients.arrivals import Arrivals
from distrun.torch.gradients.bucket import BufferBucket, GradientBuffer, Start, failed_elsewhere
from distrun.torch.operations import prepare
from distrun.torch.tensors import STORAGE, empty
from distrun.tracing import gradients

ALIGNMENT = 16
"""The alignment of slots, in bytes."""


class _Buffer(GradientBuffer):
    """Memory on this rank's GPU for the gradients of `parameters` and their flags."""

    def __init__(self, parameters: Sequence[Tensor], present: float, absent: float) -> None:
        """`present` and `absent` are the flags of a present and of a missing gradient."""
        dtype, number = parameters[0].dtype, len(parameters)
        self._itemsize = itemsize = parameters[0].element_size()
        unit = max(1, ALIGNMENT // itemsize)
        self.counts = [parameter.numel() for parameter in parameters]
        self._is_partly_empty = not all(self.counts)
        slots = [-(-count // unit) * unit for count in self.counts]
        whole = empty(cuda.CUDA, sum(slots) + number, dtype).zero_()  # zero, since padding is reduced as well
        super().__init__(whole, slots, parameters)
        self.strides = [view.stride() for view in self.views]  # or equivalent ones: see `is_laid_out`
        self.dtype = dtype
        self._known = empty(cuda.CUDA, 2 * number, dtype)  # `number` flags `present`, then as many `absent`
        self._known[:number] = present
        self._known[number:] = absent
        self.tensors = (whole, self._known)

    def is_laid_out(self, gradient: Tensor, index: int) -> bool:
        """Return whether the gradient's memory can be copied as it is into the view at `index`."""
        if gradient.layout is not torch.strided or gradient.dtype is not self.dtype:
            return False
        if gradient.is_conj() or gradient.is_neg():
            return False
        strides = gradient.stride()
        if strides == self.strides[index]:
            return True
        # Strides of dimensions of extent 1 mean nothing: a 1x1 convolution's gradient in channels_last has its own.
        extents, own = gradient.shape, self.strides[index]
        if any(extent != 1 and one != other for extent, one, other in zip(extents, strides, own, strict=True)):
            return False
        self.strides[index] = strides
        return True

    def sources_of(self, gradients: Sequence[Tensor | None]) -> list[int] | None:
        """Return the addresses of gradients that can all be copied as they are into their views, else None."""
        if self._is_partly_empty:
            return None
        try:
            strides = list(map(Tensor.stride, gradients))  # type: ignore[arg-type]
            sources = list(map(Tensor.data_ptr, gradients))  # type: ignore[arg-type]
        except (TypeError, RuntimeError):  # one is missing, or sparse
            return None
        dtypes = map(attrgetter("dtype"), gradients)
        if strides != self.strides or not all(map(is_, dtypes, repeat(self.dtype))) or self.dtype.is_complex:
            return None
        return None if any(map(Tensor.is_neg, gradients)) else sources  # type: ignore[arg-type]

    def flag_pieces(self, missing: Sequence[int]) -> list[Piece]:
        """Return the pieces that copy the flags into place. `missing` lists, in order, the parameters without a
        gradient."""
        number, target, source = len(self.views), self.addresses[-1], self._known.data_ptr()
        pieces, start = [], 0
        for index in [*missing, number]:
            at = start * self._itemsize
            pieces.append(Piece(source + at, target + at, index - start))
            if index < number:
                at = index * self._itemsize
                pieces.append(Piece(source + number * self._itemsize + at, target + at, 1))
            start = index + 1
        return [piece for piece in pieces if piece.count > 0]


class DeviceBucket(BufferBucket):
    """Gradients of one dtype on this rank's GPU, in one buffer, reduced in place.

    `send` queues one kernel, on the sender's stream, that copies the gradients into the buffer, and submits the
    reduction. A gradient that still is a view of the buffer (`zero_grad` with `set_to_none=False`, or accumulation) is
    not copied. `receive` makes the calling thread's stream wait for the results. The host does not wait, unless a
    parameter had no gradient on this rank: then it must know whether another rank had one.

    CUDA graphs: the buffer's address stays the same from the first reduction on, and all work on it is queued. So a
    step can be captured after the first reduction, if all parameters have gradients in it.

    Invariant, in addition to the one of `BufferBucket`: memory that `send` frees is not used by other streams before
    the kernel has read it.
    """

    _buffer: _Buffer

    def __init__(
        self,
        call: Call,
        places: Sequence[int],
        parameters: Sequence[Tensor],
        names: Sequence[str],
        sparse_as_dense: bool = False,
        sparse_dims: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(call, places, parameters, names, sparse_as_dense, sparse_dims)
        self._arena = arena = cuda.arena()
        self.current_stream = arena.current_stream  # type: ignore[method-assign]
        self.counted = self.places
        self._buffer = buffer = _Buffer(parameters, self._present, self._absent)
        note_held(GRADIENT_BUCKETS, buffer.whole.nbytes, buffer)
        self._flat = DeviceBuffer(buffer.start, buffer.whole.numel(), STORAGE[buffer.whole.dtype], buffer.whole)
        self._buffers: Sequence[DeviceBuffer] = RepeatedBuffers([self._flat])
        self._factor = call.prescale  # applied by the kernel that packs
        self._request = buffer.request(call)._replace(prescale=1.0)
        self._feed_back(self._request, self._factor)
        is_quantised = bool(world.engine().backend.quantisation_of(self._request))
        self.may_be_direct = is_supported(self._request) and not is_quantised
        """Whether NCCL alone reduces it."""
        # A bucket is never empty, so this request, which `forfeit` sends, mismatches those of the other ranks.
        self._nothing = self._request._replace(shapes=((0,),))
        self._user = arena.current_stream()  # the stream that has used the buffer last
        self._users = {self._user}  # all streams that have used it
        self._arrivals = Arrivals(arena)
        self._missing: list[int] = []  # indices
        self._plan: tuple[list[int], Copies | None] | None = None  # with the addresses of the gradients

    def take(self, place: int) -> None:
        """See `Bucket.take`."""
        self.counts_in = backward.current_task(), self._arrivals.note()

    @torch.no_grad()
    def send(self, start: Start) -> None:
        """See `Bucket.send`."""
        gpu, stream = world.engine().gpu(), self._arena.current_stream()
        if self._user != stream and not cuda.is_capturing():  # a capture began after that work
            self._arrivals.add(self._user)
        with gpu.driver.use:
            others = self._arrivals.join(gpu.driver, stream)
            copies = self._copies(gpu.packer)
            if copies is not None:
                gpu.packer.queue(copies, stream)
            if others:
                self._arrivals.release(gpu.driver, stream, others)
        self._use_on(stream)
        if self._loaded and not cuda.is_capturing():
            self._add_losses(set(range(len(self.parameters))).difference(self._missing))
        if gradients.are_open and not cuda.is_capturing():  # in the first steps the host waits for the device here
            whole, number = self._buffer.whole, len(self.parameters)
            sample = whole[: -number : 1 + whole.numel() // gradients.SAMPLED].abs().float()
            gradients.note(self._request.name or "", [sample.cpu().numpy()])
        for parameter in self.parameters:
            parameter.grad = None
        self._submit(start, self._buffers)

    def _use_on(self, stream: int) -> None:
        """Note that the buffer is used on `stream`, the current one."""
        self._user = stream
        if stream not in self._users and not cuda.is_capturing():  # a graph is replayed on any stream
            self._users.add(stream)
            for tensor in self._buffer.tensors:
                self._arena.keep(tensor)

    def _copies(self, packer: Packer) -> Copies | None:
        """Return the copies of the gradients into the buffer.

        They are planned once, as long as all gradients are there and laid out like their views. In the next steps only
        the addresses of the gradients may be others.
        """
        dtype = self._request.dtype
        sources = self._buffer.sources_of([parameter.grad for parameter in self.parameters])
        # A gradient in place is left out of a plan that does not scale it.
        if sources is None or (self._factor == 1.0 and any(map(eq, sources, self._buffer.addresses))):
            return packer.plan(self._pieces(), dtype, dtype, self._factor)
        if self._plan is None:
            self._plan = sources, packer.plan(self._pieces(), dtype, dtype, self._factor)
        self._missing = []
        known, copies = self._plan
        if copies is not None and known != sources:
            rewrite_sources(copies.launches, sources)
            self._plan = sources, copies
        return copies

    def _pieces(self) -> list[Piece]:
        """Return the pieces for the kernel to copy. Gradients with another layout than their view are copied here."""
        buffer = self._buffer
        pieces = []
        self._missing = []
        for index, (parameter, view) in enumerate(zip(self.parameters, buffer.views, strict=True)):
            gradient, target, count = parameter.grad, buffer.addresses[index], buffer.counts[index]
            if gradient is None:
                self._missing.append(index)
                pieces.append(Piece(0, target, count))
                continue
            if buffer.is_laid_out(gradient, index):
                pieces.append(Piece(gradient.data_ptr(), target, count))
            else:
                view.copy_(gradient if gradient.layout is torch.strided else self.to_dense(gradient, index))
                pieces.append(Piece(target, target, count))  # to be scaled, if at all
        return pieces + buffer.flag_pieces(self._missing)

    def _submit(self, start: Start, buffers: Sequence[DeviceBuffer]) -> None:
        handle = prepare(self._request, buffers, buffers)
        handle.feedback = self._feedback
        self._handle = start(handle)
        self.is_sent = True

    def forfeit(self, start: Start) -> None:
        """See `Bucket.forfeit`. The other ranks get a mismatch error, without having to look at reduced flags."""
        nothing = [self._flat.part(0, 0)]
        self._handle = start(prepare(self._nothing, nothing, nothing))
        self.is_sent = True

    def fill_in(self, start: Start) -> None:
        """Take part, with anything that is in memory, in a reduction whose results no rank uses."""
        # The buffer may hold earlier gradients.
        self._submit(start, [self._arena.empty(self._flat.size, self._flat.dtype, self._arena.current_stream())])

    def drop(self) -> None:
        """See `Bucket.drop`."""
        try:
            self._receive()
        finally:
            self._discard()

    def _receive(self) -> None:
        self._arrivals.clear()
        if self._wait():
            self._use_on(self._arena.current_stream())

    def receive(self) -> None:
        """See `Bucket.receive`."""
        try:
            self._receive()
        except MismatchError as error:
            if f"shapes {describe_field(self._nothing, 'shapes')}" in str(error):
                raise failed_elsewhere(self._request.name) from None
            raise
        self._give(self._missing_everywhere() if self._missing else ())

    def _missing_everywhere(self) -> set[int]:
        """Return the indices of parameters without a gradient on any rank. The host waits for the reduction."""
        if cuda.is_capturing():
            names = ", ".join(self._names[index] for index in self._missing[:3])
            raise UsageError(
                f"{names}: no gradient on this rank while a CUDA graph is captured, so the graph would have to ask the "
                "host whether another rank has one: let all parameters take part in the loss, or freeze those that do "
                "not with requires_grad_(False)"
            )
        flags = self._buffer.flags.tolist()
        return {index for index in self._missing if flags[index] == self._absent}
