"""Arrays and scalars of numpy in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError

Bytes = NDArray[np.uint8]
"""A flat array with the bytes of a tensor, in row-major order and in this machine's byte order."""
PLAIN_KINDS = "biufcSUmM"
"""numpy's letters for the dtypes whose elements are plain bytes."""


@dataclass(frozen=True)
class Capture:
    """A tensor to save: what the header says about it, and how to copy its bytes."""

    note: dict[str, Any]
    """The facts that `restored` needs besides the bytes, as JSON: `dtype` (a name), `shape` (a list) and so on."""
    size: int
    """The number of its bytes."""
    copy: Callable[[Bytes], None]
    """Copies the bytes to an array of that size. On a GPU the copy is queued on the current stream."""
    identity: Hashable = None
    """Equal for tensors that share their memory, so that it is saved once. None: unknown."""
    on_gpu: bool = False
    """Whether it is a tensor of torch on a GPU."""


def matches(value: Any) -> bool:
    """Whether a value is an array or a scalar of numpy."""
    return isinstance(value, (np.ndarray, np.generic))


def captured(value: Any, path: str) -> Capture:
    """Return the note, size and bytes of an array or scalar. `path` is its place, for messages.

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
    """Return the array with these bytes, in their memory."""
    array = data.view(dtype_of(note["dtype"])).reshape(note["shape"])
    return array[()] if note.get("scalar") else array


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the elements are plain bytes. bfloat16 and others of ml_dtypes are of the kind V, with a name."""
    return dtype.kind in PLAIN_KINDS or (
        dtype.kind == "V" and dtype.names is None and not dtype.name.startswith("void")
    )


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name by which `dtype_of` finds it: `float32`, `bfloat16`, `<U5`."""
    return str(dtype.str if dtype.kind in "SUmM" else dtype.name)


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype with a name, from ml_dtypes where numpy does not have it.

    Raises:
        UsageError: it is a dtype of ml_dtypes, which is not installed.
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
