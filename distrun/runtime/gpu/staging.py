"""Collectives on GPU buffers through host memory, for what NCCL cannot compute, or if NCCL cannot be used.

Here the host does wait: for the inputs, which are copied into page-locked memory, and for the other ranks. Only the
copies of the results back to the GPU are queued.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError
from distrun.runtime.backends.dispatch import execute
from distrun.runtime.backends.groups import Groups
from distrun.runtime.gpu.buffers import PINNED_STAGING, DeviceBuffer, note_held
from distrun.runtime.gpu.driver import Driver, Event
from distrun.runtime.gpu.handles import Allocate, DeviceHandle, room_for
from distrun.runtime.operations.handle import Handle, describe

Flat = NDArray[Any]

_ALIGNMENT = 64  # bytes: every array in page-locked memory begins at a multiple of this
_GROWTH = 1 << 20  # bytes: the page-locked memory's size is a multiple of this


class StagedBackend:
    """Executes the collectives of all groups on one rank. One thread at a time calls it, with the driver's GPU current.

    One allocation of page-locked memory, which grows, serves all operations. Only with page-locked memory does the
    device copy while the host continues. Invariant: before the host writes to this memory, or replaces it by a larger
    one, the device has finished all copies from and to it.
    """

    def __init__(self, driver: Driver, stream: int, groups: Groups) -> None:
        self._driver = driver
        self._groups = groups
        self._pinned: Flat = np.empty(0, np.uint8)
        self._last: Event | None = None  # after the last copies from it
        self.stream = stream
        """The stream that copies are queued on. It may be changed between operations."""

    @property
    def pinned_bytes(self) -> int:
        """The bytes of page-locked memory held."""
        return self._pinned.nbytes

    def execute(self, handles: Sequence[DeviceHandle], allocate: Allocate) -> None:
        """Execute `handles`, all of one kind and, if there are several, of one fusion key, and set their outputs.

        Raises:
            UsageError: a CUDA graph is being captured, which cannot contain staged operations.
        """
        request = handles[0].request
        if self._driver.is_capturing(self.stream):
            raise UsageError(
                f"{describe(handles)} of {request.dtype} goes through the host's memory, and a CUDA graph cannot "
                "contain that: keep it out of the graph, or let NCCL do it"
            )
        in_place = request.kind in ("allreduce", "broadcast")
        arrays = self._fetch(handles)
        host_handles = []
        for handle, mine in zip(handles, arrays, strict=True):
            inputs = () if request.kind == "broadcast" else mine
            host_handle = Handle(handle.engine, request, inputs, mine if in_place else ())
            host_handle.key, host_handle.splits = handle.key, handle.splits
            host_handle.taking_part, host_handle.feedback = handle.taking_part, handle.feedback
            host_handles.append(host_handle)
        with np.errstate(all="ignore"):  # overflow and NaN are results, as on any device
            execute(self._groups, host_handles)
        if in_place:
            for handle, mine in zip(handles, arrays, strict=True):
                for array, buffers in zip(mine, _sets(handle), strict=True):
                    self._copy_back(array, buffers)
        else:
            self._copy_results(handles, host_handles, allocate)
        self._last = self._driver.record(self.stream)

    def close(self) -> None:
        """Wait until the device has finished the copies, before their memory is freed."""
        if self._last is not None:
            self._driver.synchronize(self._last)
            self._last = None

    def _fetch(self, handles: Sequence[DeviceHandle]) -> list[list[Flat]]:
        """Return each handle's inputs in page-locked memory, an array for each of `_sets`, after waiting for the
        copies.

        For a broadcast, only the root's inputs are copied: the host backend writes the other ranks' arrays.
        """
        if self._last is not None:
            self._driver.synchronize(self._last)
        sets = [_sets(handle) for handle in handles]
        counts = [(sum(buffer.size for buffer in buffers), buffers[0].dtype) for those in sets for buffers in those]
        rest = iter(self._arrays(counts))
        arrays = [[next(rest) for _ in those] for those in sets]
        for handle, those, mine in zip(handles, sets, arrays, strict=True):
            request = handle.request
            if request.kind == "broadcast":
                if self._groups.root_of(request) != self._groups.backends[request.process_set].rank:
                    continue
            else:
                those = _input_sets(handle)
            for array, buffers in zip(mine, those, strict=True):
                at = array.ctypes.data
                for buffer in buffers:
                    self._driver.copy(at, buffer.pointer, buffer.nbytes, self.stream)
                    at += buffer.nbytes
        self._driver.synchronize(self._driver.record(self.stream))
        return arrays

    def _copy_back(self, array: Flat, buffers: Iterable[DeviceBuffer]) -> None:
        """Queue the copy of `array`, in page-locked memory, into `buffers`, which together have the same size."""
        at = array.ctypes.data
        for buffer in buffers:
            self._driver.copy(buffer.pointer, at, buffer.nbytes, self.stream)
            at += buffer.nbytes

    def _copy_results(
        self, handles: Sequence[DeviceHandle], host_handles: Sequence[Handle], allocate: Allocate
    ) -> None:
        """Queue the copies of results from the host backend's memory, which is not page-locked, to the GPU."""
        results = [output for handle in host_handles for output in handle.outputs]
        pinned = iter(self._arrays([(result.size, result.dtype) for result in results]))
        for handle, host_handle in zip(handles, host_handles, strict=True):
            outputs = []
            for index, result in enumerate(host_handle.outputs):
                array = next(pinned)
                array[:] = result
                outputs.append(room_for(handle, index, array.size, array.dtype, allocate))
                self._copy_back(array, outputs[-1:])
            handle.received = host_handle.received
            if any(output is not room for output, room in zip_longest(outputs, handle.outputs)):
                handle.outputs = outputs

    def _arrays(self, counts: Sequence[tuple[int, np.dtype[Any]]]) -> list[Flat]:
        """Return arrays of these sizes and dtypes in the page-locked memory. They overwrite the previous ones."""
        starts, total = [], 0
        for count, dtype in counts:
            starts.append(total)
            total += -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if total > self._pinned.nbytes:
            self._pinned = self._driver.pinned(-(-total // _GROWTH) * _GROWTH, np.dtype(np.uint8))
            note_held(PINNED_STAGING, self.pinned_bytes, self)
        return [
            self._pinned[start : start + count * dtype.itemsize].view(dtype)
            for start, (count, dtype) in zip(starts, counts, strict=True)
        ]


def _sets(handle: DeviceHandle) -> list[Sequence[DeviceBuffer]]:
    """Return the sets of buffers that become one array each on the host.

    An allreduce takes all its tensors as one long array. Other kinds take an array per tensor. For an operation in
    place, these are its outputs.
    """
    if handle.request.kind == "allreduce":
        return [handle.outputs] if handle.outputs else []
    return [[buffer] for buffer in (handle.outputs if handle.request.kind == "broadcast" else handle.inputs)]


def _input_sets(handle: DeviceHandle) -> list[Sequence[DeviceBuffer]]:
    """Return the buffers whose elements are copied into the arrays of `_sets`."""
    if handle.request.kind == "allreduce":
        return [handle.inputs] if handle.inputs else []
    return [[buffer] for buffer in handle.inputs]
