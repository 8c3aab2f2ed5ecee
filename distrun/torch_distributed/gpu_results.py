"""Results on a GPU, whose last copies may be queued on another stream than the one that uses them.

The results of some operations are copied into the caller's tensors when they are fetched, on the stream that is current
then: the stream of the thread that waits for the work, or one that torch chooses for the callbacks of a future. Another
thread that waits for the work waits for these copies too. The memory belongs to the stream that was current when the
operation was submitted, so torch must know that another stream uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.operations.handle import Handle
from distrun.torch import cuda
from distrun.torch.cuda import StreamPoint, TorchArena
from distrun.torch_distributed.operations.repeated import PlainHandle


def arena_of(handles: Sequence[Handle]) -> TorchArena | None:
    """Return the arena of the operations on a GPU, or None if there are none."""
    for handle in handles:
        if isinstance(handle, DeviceHandle):
            return handle.arena  # type: ignore[return-value]  # these handles are made in `distrun.torch`
    return None


def bind(handles: Sequence[Handle]) -> None:
    """Make the GPU of the operations, if they are on one, the current one of this thread."""
    arena = arena_of(handles)
    if arena is not None:
        arena.bind()


def note_fetched(handles: Sequence[Handle], tensors: Any) -> StreamPoint | None:
    """Note that results have just been fetched, on the current stream, into tensors in any nesting of sequences. Return
    the point in the stream after the copies, or None if no operation has any.
    """
    arena = arena_of(handles)
    if arena is None or all(isinstance(handle, PlainHandle) for handle in handles):
        return None
    stream = arena.current_stream()
    on_gpu = [handle for handle in handles if isinstance(handle, DeviceHandle)]
    if any(handle.stream != stream for handle in on_gpu):
        formed = [buffer.owner for handle in on_gpu for buffer in handle.outputs]
        for tensor in (*formed, *_tensors(tensors)):
            if cuda.kind(tensor) == cuda.CUDA:
                arena.keep(tensor)
    return arena.moment()


def _tensors(nested: Any) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, (list, tuple)):
        for each in nested:
            yield from _tensors(each)
