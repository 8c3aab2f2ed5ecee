"""Loss functions within a training step, turned into means over the rows of the rank's part: see `steps`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from distrun.auto.keras import steps
from distrun.auto.keras.collectives import total
from distrun.auto.refusing import refuse
from distrun.errors import in_one_line

# Losses that compare the rows of a batch unless they are given an axis:
_OF_BATCH = tuple(getattr(keras.losses, name) for name in ("Dice", "Tversky", "Circle") if hasattr(keras.losses, name))
_FUNCTIONS_OF_BATCH = tuple(
    getattr(keras.losses, name) for name in ("dice", "tversky", "circle") if hasattr(keras.losses, name)
)

_FUNCTION_LINES = ("def loss(y_true, y_pred): return keras.ops.mean(..., axis=-1)  # one for each row",)
_losses: list[tuple[Any, Any, Any]] = []  # the losses that are being called, outermost first, with their arguments


def install() -> None:
    """Change the functions that compute and reduce losses in Keras."""
    from keras.src.losses import loss as module

    call, reduce = keras.losses.Loss.__call__, module.reduce_weighted_values

    @functools.wraps(call)
    def called(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        step = steps.current()
        if step is None:
            return call(self, y_true, y_pred, sample_weight)
        step.is_own = step.is_own or not is_of_each_row(self)
        _losses.append((self, y_true, y_pred))
        try:
            return call(self, y_true, y_pred, sample_weight)
        finally:
            _losses.pop()

    @functools.wraps(reduce)
    def reduced(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = reduce(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        step = steps.current()
        if step is None or not _losses:
            return loss
        return _made_mean(step, loss, values, sample_weight, mask, reduction)

    add = keras.layers.Layer.add_loss

    @functools.wraps(add)
    def added(self: Any, loss: Any) -> Any:
        if (step := steps.current()) is not None:
            step.is_own = True
        return add(self, loss)

    keras.layers.Layer.add_loss = added
    keras.layers.Layer.stateless_call = _without_earlier_losses(keras.layers.Layer.stateless_call)
    keras.losses.Loss.__call__ = called
    module.reduce_weighted_values = reduced


def _without_earlier_losses(stateless_call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Layer.stateless_call`, changed so that it forgets the losses of earlier calls first.

    Keras tells the losses that a layer has added in JAX by the ids of arrays, and keeps these after a call. So a new
    loss that got the id of an old one of another layer would be dropped, now and then.
    """

    @functools.wraps(stateless_call)
    def called(self: Any, *arguments: Any, **options: Any) -> Any:
        for layer in self._flatten_layers():
            layer._loss_ids.clear()
        return stateless_call(self, *arguments, **options)

    return called


def is_of_each_row(loss: Any) -> bool:
    """Whether a loss is one of Keras's own that compute each row's value from that row alone."""
    function = getattr(loss, "fn", None)
    return (
        steps.are_of_keras(type(loss), function)
        and not isinstance(loss, _OF_BATCH)
        and function not in _FUNCTIONS_OF_BATCH
    )


def _made_mean(step: steps.PartialStep, loss: Any, values: Any, sample_weight: Any, mask: Any, reduction: Any) -> Any:
    name = _losses[-1][0].name
    if reduction in (None, "none"):
        refuse(
            f"the loss {name} has reduction={reduction!r}, so it gives a loss for each row of a part",
            ['keras.losses.MeanSquaredError(reduction="sum_over_batch_size")'],
        )
    if len(values.shape) == 0:
        return loss * step.growth(loss) if _adds_up(*_losses[-1]) else loss
    if reduction == "sum":
        return loss * step.growth(loss)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weights = ops.cast(sample_weight, loss.dtype)
        if mask is not None:
            weights = weights * ops.cast(mask, loss.dtype)
        return loss * _share_of(step, ops.sum(weights))
    if mask is not None:  # a mean over the valid entries
        return loss * _share_of(step, ops.sum(ops.cast(mask, loss.dtype)))
    return loss


def _share_of(step: steps.PartialStep, mine: Any) -> Any:
    """Return the factor that turns a mean weighted by `mine`, this rank's total weight, into one weighted by rows."""
    if step.is_trial:
        return mine * step.growth(mine)
    whole = total(mine, step.name("loss")) / step.copies(mine)
    return ops.divide_no_nan(mine, whole) * step.growth(mine)


# Functions that return one number for a batch -------------------------------------------------------------------------


def _adds_up(loss: Any, y_true: Any, y_pred: Any) -> bool:
    """Whether a loss function that returns a number for a batch sums over its rows.

    It is tried on two generated batches: the second one contains the first one twice.

    Raises:
        Refusal: it returns neither a sum nor a mean.
    """
    once, twice = (_tried(loss, y_true, y_pred, rows) for rows in (2, 4))
    if np.isclose(once, twice, rtol=1e-3):
        return False
    if not np.isclose(2 * once, twice, rtol=1e-3):
        refuse(
            f"the loss function {loss.name} returns neither the sum nor the mean of the losses of its rows "
            f"({once:.6g} of 2 rows, {twice:.6g} of the same rows twice), so the ranks' losses do not make up that of "
            "the batch",
            _FUNCTION_LINES,
        )
    return True


def _tried(loss: Any, y_true: Any, y_pred: Any, rows: int) -> float:
    def made(like: Any, low: float) -> Any:
        shape = (2, *(4 if each is None else each for each in like.shape[1:]))
        values = np.random.default_rng(0).uniform(low, low + 0.5, shape)
        kind = keras.backend.standardize_dtype(like.dtype)
        return ops.convert_to_tensor(np.concatenate([values] * (rows // 2)).astype(kind), kind)

    try:
        with _eagerly():
            return float(ops.convert_to_numpy(loss.call(made(y_true, 0.5), made(y_pred, 0.2))))
    except Exception as error:
        refuse(
            f"the loss function {loss.name} returns one number for a batch, and fails with {rows} rows "
            f"({in_one_line(error)}), so that it cannot be seen whether that is a mean over the rows",
            _FUNCTION_LINES,
        )


def _eagerly() -> Any:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.init_scope()
    if keras.backend.backend() == "jax":
        import jax

        return jax.ensure_compile_time_eval()
    import torch

    return torch.no_grad()
