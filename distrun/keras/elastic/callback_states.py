"""The state of Keras's own callbacks, for other ranks and for another `fit`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

_KINDS = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")
_WEIGHTS = "best_weights"  # of EarlyStopping(restore_best_weights=True)


def of(callbacks: Any) -> dict[int, dict[str, Any]]:
    """Return the numbers that the callbacks of a CallbackList count and compare with, by their places in it."""
    return {
        place: {name: value for name, value in vars(callback).items() if _is_learnt(name, value)}
        for place, callback in enumerate(callbacks.callbacks)
        if _is_known(callback)
    }


def restore(callbacks: Any, states: dict[int, dict[str, Any]], history: Iterable[tuple[int, dict[str, Any]]]) -> None:
    """Load `states`, which `of` has returned, into the callbacks of a CallbackList, and `history` into its History."""
    for place, callback in enumerate(callbacks.callbacks):
        if place in states and _is_known(callback):
            vars(callback).update(states[place])
    for epoch, logs in history:
        callbacks._history.epoch.append(epoch)
        for name, value in logs.items():
            callbacks._history.history.setdefault(name, []).append(value)


def _is_known(callback: Any) -> bool:
    return any(kind.__name__ in _KINDS for kind in type(callback).__mro__)


def _is_learnt(name: str, value: Any) -> bool:
    return name == _WEIGHTS or value is None or isinstance(value, (bool, int, float, np.number))
