"""Arrays and scalars of numpy in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError

Bytes = NDArray[np.uint8]
"""A flat array: the bytes of a tensor, in row-major order and in this machine's byte order."""
PLAIN_KINDS = "biufcSUmM"
"""numpy's letters for the dtypes whose elements are bytes and no more."""


@dataclass(frozen=True)
class Capture:
    """A tensor that is to be saved: what its header says, and how to copy its bytes."""

    note: dict[str, Any]
    """Whatever `restored` needs besides the bytes: `dtype` (a name), `shape` (a list) and so on; as JSON."""
    size: int
    """The number of its bytes."""
    copy: Callable[[Bytes], None]
    """Copies the bytes to an array of that size. On a GPU the copy is queued on the current stream."""
    identity: Hashable = None
    """Equal for tensors that share their memory, of which one is saved. None: not known."""
    on_gpu: bool = False
    """Whether it is torch's, on a GPU."""


def matches(value: Any) -> bool:
    """Whether a value is one of these."""
    return isinstance(value, (np.ndarray, np.generic))


def captured(value: Any, path: str) -> Capture:
    """Return what is to be saved of one.

    Raises:
        UsageError: its elements are Python objects.
    """
    array = np.asarray(value)
    dtype = array.dtype.newbyteorder("=")
    if not is_plain(dtype):
        raise UsageError(f"{path} is an array of {dtype}, which a checkpoint cannot hold: make it an array of numbers")

    def copy(target: Bytes) -> None:
        target.view(dtype).reshape(array.shape)[...] = array

    note = {"dtype": name_of(dtype), "shape": list(array.shape)}
    return Capture(note | ({"scalar": True} if isinstance(value, np.generic) else {}), array.nbytes, copy)


def restored(note: dict[str, Any], data: Bytes, like: Any) -> Any:
    """Return an array made of its bytes, which it keeps."""
    array = data.view(dtype_of(note["dtype"])).reshape(note["shape"])
    return array[()] if note.get("scalar") else array


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the elements are bytes and no more: ml_dtypes's bfloat16 and the like are of the kind V, with a name."""
    return dtype.kind in PLAIN_KINDS or (
        dtype.kind == "V" and dtype.names is None and not dtype.name.startswith("void")
    )


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name by which `dtype_of` finds it: `float32`, `bfloat16`, `<U5`."""
    return str(dtype.str if dtype.kind in "SUmM" else dtype.name)


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a name; those that numpy does not have itself come from ml_dtypes.

    Raises:
        UsageError: it is the name of a dtype of ml_dtypes, which is not installed.
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(
            f"the checkpoint has an array of {name}, for which numpy needs: pip install ml_dtypes"
        ) from None
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found
