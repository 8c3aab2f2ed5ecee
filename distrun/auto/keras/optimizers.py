"""The script's optimizers, changed so that they use the gradients of all ranks, weighted by rows."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import keras

from distrun.auto.keras import steps
from distrun.auto.refusing import refuse
from distrun.keras import library
from distrun.keras.choice import CHOSEN
from distrun.keras.gradients import Distributed
from distrun.keras.optimizer import DistributedOptimizer
from distrun.runtime.world import world

_LOOP = (
    "model.compile(optimizer=..., loss=...)",
    "model.fit(x, y)  # with a train_step of your own, if the loss needs one",
)

_depth = 0  # of nested calls of distributed optimizers, which may call plain ones inside


class Weighted:
    """A mixin for the class of a distributed optimizer."""

    def scale_loss(self, loss: Any) -> Any:
        """Multiply the loss by this rank's share."""
        step = steps.current()
        if step is not None and step.is_trial:
            return loss
        loss = super().scale_loss(loss)  # type: ignore[misc]
        if step is None:
            return loss
        step.scaled.add(id(self))
        return loss * step.share(loss)

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Update the variables with the gradients of all ranks."""
        if _is_tried(grads):
            return None
        with _Inside():
            return super().apply(_weighted(self, grads), trainable_variables)  # type: ignore[misc]

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Update the variables, given by value, with the gradients of all ranks."""
        if _is_tried(grads):
            return trainable_variables, optimizer_variables
        if not isinstance(self, keras.optimizers.LossScaleOptimizer):  # the others call `apply`
            return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]
        grads = _weighted(self, grads)
        with _Inside():
            return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]


def _is_tried(gradients: Any) -> bool:
    """Whether the step is only tried. If it is, keep its gradients for the trial."""
    step = steps.current()
    if step is None or step.gradients is None:
        return False
    step.gradients.append(list(gradients))
    return True


class _Inside:
    def __enter__(self) -> None:
        global _depth
        _depth += 1

    def __exit__(self, *error: object) -> None:
        global _depth
        _depth -= 1


def _weighted(optimizer: Any, gradients: Any) -> list[Any]:
    step = steps.current()
    if step is None:
        refuse(_loop_of(optimizer), _LOOP)
    is_scaled = id(optimizer) in step.scaled
    step.is_own = step.is_own or not is_scaled
    step.scaled.discard(id(optimizer))  # a second `apply` of the step has gradients of another loss
    return [_of_this_rank(step, gradient, is_scaled) for gradient in gradients]


def _of_this_rank(step: steps.PartialStep, gradient: Any, is_scaled: bool) -> Any:
    if gradient is None:
        return None
    if type(gradient).__name__ == "IndexedSlices":
        return _slices_of_this_rank(step, gradient, is_scaled)
    return gradient if is_scaled else gradient * step.share(gradient)


def _slices_of_this_rank(step: steps.PartialStep, slices: Any, is_scaled: bool) -> Any:
    """Return the slices of this rank's gradient.

    Optimizers count duplicate rows, so if every rank has computed the whole batch, only rank 0 contributes slices.
    """
    import tensorflow as tf

    values = slices.values if is_scaled else slices.values * step.share(slices.values)
    copies = step.copies(values)
    count = tf.shape(values)[0]
    if world.rank() > 0:
        count = tf.where(copies > 1, 0, count)
    return tf.IndexedSlices(values[:count] * copies, slices.indices[:count], slices.dense_shape)


def distribute(optimizer: Any) -> None:
    """Make an optimizer use the gradients of all ranks, unless it does already."""
    if isinstance(optimizer, Weighted):
        return
    if isinstance(optimizer, Distributed):
        refuse(
            "the script makes a DistributedOptimizer of its own, so it is a parallel one already",
            ["distrun -np 4 python train.py  # without --auto"],
        )
    DistributedOptimizer(optimizer)
    plain = type(optimizer)
    kind: Any = types.new_class(plain.__name__, (Weighted, plain))
    kind.__qualname__, kind.__module__, kind.__doc__ = plain.__qualname__, plain.__module__, plain.__doc__
    CHOSEN.save_as(kind, kind.distrun_plain)
    library.switch_class(optimizer, kind)


def optimizers_of(model: Any) -> Iterator[Any]:
    """Yield the optimizers of a model: the one from `compile`, and those that it keeps as attributes."""
    found: list[Any] = []
    values = [getattr(model, "optimizer", None), *vars(model).values()]
    for value in values:
        members = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        for each in members:
            if isinstance(each, keras.optimizers.Optimizer) and not any(each is known for known in found):
                found.append(each)
                yield each


def watch() -> None:
    """Refuse updates by any optimizer that does not belong to a model in `fit` or `train_on_batch`."""
    base = next(kind for kind in keras.optimizers.Optimizer.__mro__ if "apply" in vars(kind))
    plain = base.apply

    def apply(self: Any, *args: Any, **options: Any) -> Any:
        if _depth == 0 and not isinstance(self, Distributed) and world.size() > 1:
            refuse(_loop_of(self), _LOOP)
        return plain(self, *args, **options)

    base.apply = apply


def _loop_of(optimizer: Any) -> str:
    name = type(optimizer).__name__
    if steps.current() is not None:
        return f"train_step uses an optimizer, {name}, that is no attribute of the model"
    return (
        f"a training loop of the script's own updates weights with {name}: which rows of which data belong to a step "
        "is not to be seen from outside"
    )
