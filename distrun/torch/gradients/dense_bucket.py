"""The bucket for dense gradients on the CPU: copied into one buffer as they are completed, and reduced in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.handle import Handle
from distrun.runtime.world import world
from distrun.torch.gradients.backward import current_task
from distrun.torch.gradients.bucket import BufferBucket, GradientBuffer, Start, failed_elsewhere
from distrun.torch.tensors import empty_array, tensor_of
from distrun.tracing import gradients

AT_ONCE = 4 << 10
"""The number of elements from which a gradient is copied by itself, as soon as it is complete."""


class DenseBucket(BufferBucket):
    """Gradients of one dtype on the CPU, in one buffer, reduced in place; nothing is copied back.

    A large gradient is copied into its place in the buffer as soon as it is complete, and freed. So it is still in
    cache when it is read, and its memory serves for the next gradient instead of being allocated again from the system.
    Small ones are copied together, with one call, when the bucket is sent. After the reduction the gradients are views
    of the buffer. If torch adds the next gradient into such a view (`zero_grad` with `set_to_none=False`, or
    accumulation), it is in its place already and is not copied at all.
    """

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
        counts = [parameter.numel() for parameter in parameters]
        array = empty_array(sum(counts) + len(counts), parameters[0].dtype)
        self._arrays = (array,)
        self._buffer = GradientBuffer(tensor_of(array, parameters[0].dtype, (-1,)), counts, parameters)
        self._request = self._buffer.request(call)
        self._feed_back(self._request)
        self._index = {place: index for index, place in enumerate(self.places)}
        self._taken: set[int] = set()  # indices
        self.counted = [place for place, count in zip(places, counts, strict=True) if count < AT_ONCE]

    def take(self, place: int) -> None:
        self.counts_in = current_task(), 0
        index = self._index[place]
        parameter = self.parameters[index]
        gradient = parameter.grad
        if parameter.numel() < AT_ONCE or gradient is None or gradient.is_sparse:
            return  # `send` copies it
        if gradient.data_ptr() != self._buffer.addresses[index]:
            self._buffer.views[index].copy_(gradient.detach() if gradient.requires_grad else gradient)
        parameter.grad = None
        self._taken.add(index)

    @torch.no_grad()
    def send(self, start: Start) -> None:
        buffer = self._buffer
        buffer.flags.fill_(self._present)
        if len(self._taken) < len(self.parameters):
            self._take_rest()
        if self._loaded:
            flags = buffer.flags.tolist()
            self._add_losses([index for index, flag in enumerate(flags) if flag == self._present])
        if gradients.are_open:
            gradients.note(self._request.name or "", [self._arrays[0][: -len(self.parameters)]])
        self._start(start)

    def _start(self, start: Start) -> None:
        handle = Handle(world.engine(), self._request, self._arrays, self._arrays)
        handle.feedback = self._feedback
        self._handle = start(handle)
        self.is_sent = True

    def _take_rest(self) -> None:
        """Copy the gradients that were not taken yet, with one call, since there may be very many small ones."""
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
                sources.append(self.to_dense(gradient, index) if gradient.is_sparse else gradient)
            parameter.grad = None
        if targets:
            torch._foreach_copy_(targets, sources)

    def forfeit(self, start: Start) -> None:
        """See `Bucket.forfeit`. Flags that are NaN here are NaN on every rank after the reduction."""
        self._buffer.flags.fill_(float("nan"))
        self._start(start)

    def drop(self) -> None:
        self._taken.clear()
        try:
            self._wait()
        finally:
            self._discard()

    def receive(self) -> None:
        self._taken.clear()
        self._wait()
        flags = self._buffer.flags.tolist()
        if flags[0] != flags[0]:  # NaN: see `forfeit`
            raise failed_elsewhere(self._request.name)
        absent = self._absent
        self._give([index for index, flag in enumerate(flags) if flag == absent] if absent in flags else ())
