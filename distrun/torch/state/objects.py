"""Collectives on Python objects with tensors in them. Tensors on the sender's GPU arrive on the receiver's own GPU.

A pickle has the number of the GPU that a tensor was on. On the receiver that number is the GPU of another rank, and
unpickling would create a context there, of some hundred MB, and put the tensor there.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle
from torch import device, dtype, uint8
from torch.storage import TypedStorage, UntypedStorage

from distrun.runtime.collectives import objects
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world
from distrun.torch import cuda

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Copy the root's object to all ranks. Tensors in it that are on the root's GPU arrive on this rank's GPU.

    Args:
        obj: on the root, anything that cloudpickle can pickle. It is ignored on other ranks.
        root_rank: the rank, in the world, whose object it is.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        The unpickled copy; on the root, `obj` itself.

    Raises:
        UsageError: `root_rank` is not a rank of the process set.
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    received = objects.broadcast_object(_Parcel(obj), root_rank, name, process_set)
    return obj if isinstance(received, _Parcel) else received


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Collect the ranks' objects. Tensors in them that are on a rank's GPU arrive on this rank's GPU.

    Args:
        obj: anything that cloudpickle can pickle.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        Copies of all ranks' objects, in rank order.

    Raises:
        CollectiveError: the ranks disagree, a rank does not come, or one is gone; see `distrun.allreduce`.
    """
    return objects.allgather_object(_Parcel(obj), name, process_set)


class _Parcel:
    """Wraps an object to pickle it by `_Pickler`. Unpickling returns the object itself."""

    def __init__(self, content: Any) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        packed = io.BytesIO()
        _Pickler(packed).dump(self._content)
        return pickle.loads, (packed.getvalue(),)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc,unused-ignore]
    """A pickler of cloudpickle that copies the memory of tensors on the GPU to the host."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, UntypedStorage):  # of uint16 and other late types, whose tensors are made of typed ones
            return _same, (_typed(obj, uint8),)
        if isinstance(obj, TypedStorage) and _is_on_gpu(obj):
            return _unpack, (_moved(obj, device(cuda.CPU)),)
        return super().reducer_override(obj)


def _is_on_gpu(storage: TypedStorage) -> bool:
    kind: str = storage._untyped_storage.device.type
    return kind == cuda.CUDA


def _same(storage: TypedStorage) -> TypedStorage:
    return storage


def _unpack(storage: TypedStorage) -> TypedStorage:
    """Return a storage on this rank's GPU, or in host memory if it has none."""
    own = world.device()
    return _moved(storage, device(own.name, own.index)) if own.name == cuda.CUDA else storage


def _moved(storage: TypedStorage, where: device) -> TypedStorage:
    return _typed(storage._untyped_storage.to(device=where), storage.dtype)  # its own `to` warns


def _typed(storage: UntypedStorage, elements: dtype) -> TypedStorage:
    return TypedStorage(wrap_storage=storage, dtype=elements, _internal=True)  # type: ignore[no-untyped-call]
