"""Converting a Keras 3 optimizer to the rule that parameter servers apply, and checking that they can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from distrun.errors import NotOfferedError, UsageError
from distrun.methods.servers.rules import Rule
from distrun.methods.servers.session import MOST_WIDTH

_KNOWN = "SGD, Adam, AdamW and Adagrad of keras.optimizers"
_UNSUPPORTED = ("gradient_accumulation_steps", "use_ema", "amsgrad")


def check(optimizer: Any) -> None:
    """Raise a NotOfferedError if servers cannot apply the updates of `optimizer`."""
    rule_of(optimizer)
    for name in _UNSUPPORTED:
        if getattr(optimizer, name, None):
            raise NotOfferedError(
                f"{type(optimizer).__name__}({name}={getattr(optimizer, name)}) is not offered by parameter servers: "
                "leave it out"
            )


def rule_of(optimizer: Any) -> Rule:
    """Return the servers' rule for the updates of `optimizer`, or raise a NotOfferedError."""
    name = type(optimizer).__name__
    if name not in ("SGD", "Adam", "AdamW", "Adagrad") or not isinstance(optimizer, getattr(keras.optimizers, name)):
        raise NotOfferedError(f"{name} cannot run on parameter servers: allowed are {_KNOWN}, and none derived")
    common = {"weight_decay": float(optimizer.weight_decay or 0.0)}
    if name == "SGD":
        momentum = float(optimizer.momentum)
        return Rule("keras.SGD", {**common, "momentum": momentum, "nesterov": bool(optimizer.nesterov)})
    common["eps"] = float(optimizer.epsilon)
    if name == "Adagrad":
        return Rule("keras.Adagrad", {**common, "initial": float(optimizer.initial_accumulator_value)})
    return Rule("keras.Adam", {**common, "beta1": float(optimizer.beta_1), "beta2": float(optimizer.beta_2)})


def check_rows(optimizer: Any, embeddings: Sequence[Any]) -> None:
    """Refuse layers with rows that are too long, and an optimizer that changes rows without a gradient."""
    rule = rule_of(optimizer)
    if embeddings and (rule.name == "keras.Adam" or rule.settings.get("momentum") or rule.settings["weight_decay"]):
        raise NotOfferedError(
            f"{type(optimizer).__name__} as it is set changes rows of {embeddings[0].name} that have no gradient: use "
            "SGD without momentum, or Adagrad, without weight decay, or leave out model= and push dense gradients"
        )
    for layer in embeddings:
        if layer.output_dim > MOST_WIDTH:
            raise UsageError(f"{layer.name} has rows of {layer.output_dim} elements: allowed are at most {MOST_WIDTH}")
