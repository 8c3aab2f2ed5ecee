"""The registry of handlers by the types of what they handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from distrun.elastic.part import is_stateful
from distrun.torch.elastic.handlers import GradScalerStateHandler, ModelStateHandler, ObjectStateHandler, StateHandler
from distrun.torch.elastic.optimizers import OptimizerStateHandler

Registry = list[tuple[type, Callable[[Any], StateHandler]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.amp.grad_scaler.GradScaler, GradScalerStateHandler),
]


def get_handler_registry() -> Registry:
    """Return the pairs of a type and its handler. The first pair that fits an object is used."""
    return _registry


def set_handler_registry(registry: Registry) -> None:
    """Use `registry`, pairs of a type and a handler, for states that are made later."""
    global _registry
    _registry = registry


def handler_of(value: Any) -> StateHandler | None:
    """Return a new handler for a value, or None for a plain object."""
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return ObjectStateHandler(value) if is_stateful(value) else None
