"""The arithmetic of the frameworks' optimizers, in numpy: how a gradient updates parameters.

A rule is named after the optimizer that it reproduces, up to rounding. `torch.SGD` and `keras.SGD` differ in their
arithmetic. A rule is a pure function of chunks of float32 arrays that returns new arrays, so that a server can commit
the results of a chunk as a whole (see `memory`).

Sources: torch.optim and keras.optimizers, as of torch 2.9 and Keras 3.12. Delayed Nesterov: Liu et al., "Asynchronous
Local-SGD Training for Language Modeling" (arXiv 2401.09135), algorithm 3 with c = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """An optimizer's name and its settings, except for the learning rate, which is sent with each gradient."""

    name: str
    settings: Settings = field(default_factory=dict)


def slots_of(rule: Rule) -> dict[str, float]:
    """Return the initial values of the arrays of an optimizer's state, by name."""
    settings = rule.settings
    match rule.name:
        case "torch.SGD" | "keras.SGD":
            return {
                **({"momentum_buffer": 0.0} if settings.get("momentum") else {}),
                **({"delayed": 0.0} if settings.get("delay") else {}),
            }
        case "torch.Adam" | "torch.SparseAdam" | "keras.Adam":
            return {"exp_avg": 0.0, "exp_avg_sq": 0.0}
        case "torch.Adagrad" | "keras.Adagrad":
            return {"sum": settings["initial"]}
    raise ValueError(f"there is no rule {rule.name!r}")


def applied(
    rule: Rule, rate: float, step: int, value: Array, gradient: Array, slots: Sequence[Array]
) -> tuple[Array, ...]:
    """Return the new values and the new slots after one update.

    `step` is the number of this update of the parameter, from 1. `slots` are in the order of `slots_of`.
    """
    return _RULES[rule.name](rule.settings, rate, step, value, gradient, *slots)


def _torch_sgd(settings: Settings, rate: float, step: int, value: Array, gradient: Array, *slots: Array) -> Any:
    momentum = settings["momentum"]
    gradient = _decayed(settings, value, gradient)
    if settings.get("delay"):
        return _delayed_nesterov(settings["delay"], momentum, rate, step, value, gradient, *slots)
    if not momentum:
        return (value - rate * gradient,)
    velocity = gradient if step == 1 else momentum * slots[0] + (1 - settings["dampening"]) * gradient
    return value - rate * (gradient + momentum * velocity if settings["nesterov"] else velocity), velocity


def _delayed_nesterov(
    delay: int, momentum: float, rate: float, step: int, value: Array, gradient: Array, velocity: Array, delayed: Array
) -> Any:
    delayed = delayed + gradient
    if step % delay:
        return value - (rate / delay) * gradient, velocity, delayed
    velocity = momentum * velocity + delayed * np.float32(1 / delay)
    return value - rate * (momentum * velocity + gradient / delay), velocity, np.zeros_like(delayed)


def _torch_adam(settings: Settings, rate: float, step: int, value: Array, gradient: Array, *slots: Array) -> Any:
    beta1: float = settings["beta1"]
    beta2: float = settings["beta2"]
    decay: float = settings["weight_decay"]
    if settings["is_decoupled"]:
        gradient = -gradient if settings["maximize"] else gradient
        value = value * np.float32(1 - rate * decay)
    else:
        gradient = _decayed(settings, value, gradient)
    mean, square = _moments(beta1, beta2, gradient, *slots)
    divisor = np.sqrt(square) / np.float32(math.sqrt(1 - beta2**step)) + np.float32(settings["eps"])
    return value - rate / (1 - beta1**step) * (mean / divisor), mean, square


def _adam(settings: Settings, rate: float, step: int, value: Array, gradient: Array, *slots: Array) -> Any:
    """Apply Adam with epsilon inside the bias correction: Keras' Adam and AdamW, and torch's SparseAdam."""
    beta1, beta2 = settings["beta1"], settings["beta2"]
    gradient = -gradient if settings.get("maximize") else gradient
    value = value * (1 - rate * settings["weight_decay"]) if settings.get("weight_decay") else value
    mean, square = _moments(beta1, beta2, gradient, *slots)
    rate *= math.sqrt(1 - beta2**step) / (1 - beta1**step)
    return value - rate * mean / (np.sqrt(square) + settings["eps"]), mean, square


def _moments(beta1: float, beta2: float, gradient: Array, mean: Array, square: Array) -> tuple[Array, Array]:
    return mean + (1 - beta1) * (gradient - mean), beta2 * square + (1 - beta2) * (gradient * gradient)


def _torch_adagrad(settings: Settings, rate: float, step: int, value: Array, gradient: Array, *slots: Array) -> Any:
    gradient = _decayed(settings, value, gradient)
    total = slots[0] + gradient * gradient
    rate /= 1 + (step - 1) * settings["lr_decay"]
    return value - rate * (gradient / (np.sqrt(total) + settings["eps"])), total


def _keras_sgd(settings: Settings, rate: float, step: int, value: Array, gradient: Array, *slots: Array) -> Any:
    value = value * (1 - rate * settings["weight_decay"]) if settings["weight_decay"] else value
    momentum = settings["momentum"]
    if not momentum:
        return (value - rate * gradient,)
    velocity = momentum * slots[0] - rate * gradient
    return value + (momentum * velocity - rate * gradient if settings["nesterov"] else velocity), velocity


def _keras_adagrad(settings: Settings, rate: float, step: int, value: Array, gradient: Array, *slots: Array) -> Any:
    value = value * (1 - rate * settings["weight_decay"]) if settings["weight_decay"] else value
    total = slots[0] + gradient * gradient
    return value - rate * gradient / np.sqrt(total + settings["eps"]), total


def _decayed(settings: Settings, value: Array, gradient: Array) -> Array:
    """Return `gradient` with torch's `maximize` and its L2 weight decay applied."""
    gradient = -gradient if settings.get("maximize") else gradient
    decay: float = settings.get("weight_decay", 0.0)
    return gradient + decay * value if decay else gradient


_RULES: dict[str, Callable[..., tuple[Array, ...]]] = {
    "torch.SGD": _torch_sgd,
    "torch.Adam": _torch_adam,
    "torch.SparseAdam": _adam,
    "torch.Adagrad": _torch_adagrad,
    "keras.SGD": _keras_sgd,
    "keras.Adam": _adam,
    "keras.Adagrad": _keras_adagrad,
}
