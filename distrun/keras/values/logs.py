"""The numbers in the logs of Keras: any nest of dictionaries and lists, which may hold text and None as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.keras.values import array_of

Path = tuple[Any, ...]
"""The keys and indices that lead to a value in a nest; () for a value by itself."""


def numbers_of(logs: Any) -> dict[Path, NDArray[Any]]:
    """Return the numbers in logs by their paths, in the order of their names: arrays of integers or reals, of any
    shape.

    Logs are a value, or a nest of values. Numbers, arrays, tensors and variables of the backend are numbers, those of
    bfloat16 in float32. Text, None, booleans and other objects are left out.
    """
    found = {path: array for path, value in _leaves(logs, ()) if (array := _number(value)) is not None}
    return dict(sorted(found.items(), key=lambda item: tuple(map(str, item[0]))))


def replaced(logs: Any, numbers: Mapping[Path, Any]) -> Any:
    """Return logs with `numbers` in place of the numbers at their paths: Python numbers for arrays of shape ()."""
    return _rebuilt(logs, (), lambda path, value: _plain(numbers[path]) if path in numbers else value)


def plain(logs: Any) -> Any:
    """Return logs that can be pickled: with Python numbers, or numpy arrays for numbers with a shape."""
    return replaced(logs, numbers_of(logs))


def name_of(path: Path) -> str:
    """Return a path as text, such as `compile_metrics/mae`."""
    return "/".join(map(str, path))


def _number(value: Any) -> NDArray[Any] | None:
    if value is None or isinstance(value, (str, bytes, bool)):
        return None
    try:
        array = np.asarray(array_of(value))
    except (TypeError, ValueError, AttributeError):  # no value that the backend knows
        return None
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    return array if array.dtype.kind in "iuf" else None


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return array if array.ndim else array.item()


def _leaves(logs: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    members = _members(logs)
    if members is None:
        yield path, logs
        return
    for key, value in members:
        yield from _leaves(value, (*path, key))


def _members(logs: Any) -> list[tuple[Any, Any]] | None:
    """Return the keys and values of a nest, or None for a value."""
    if isinstance(logs, Mapping):
        return list(logs.items())
    return list(enumerate(logs)) if isinstance(logs, (list, tuple)) else None


def _rebuilt(logs: Any, path: Path, of: Callable[[Path, Any], Any]) -> Any:
    members = _members(logs)
    if members is None:
        return of(path, logs)
    values = [_rebuilt(value, (*path, key), of) for key, value in members]
    if isinstance(logs, Mapping):
        return dict(zip((key for key, _ in members), values, strict=True))
    return type(logs)(*values) if hasattr(logs, "_fields") else type(logs)(values)
