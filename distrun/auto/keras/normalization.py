"""Batch normalization by the statistics of the whole batch, as in a single process."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from distrun.auto.keras import steps
from distrun.auto.keras.collectives import total


def install() -> None:
    """Change the layers of batch normalization, within training steps."""
    layer = keras.layers.BatchNormalization
    plain = layer._moments

    def moments(self: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = plain(self, inputs, mask)
        step = steps.current()
        if step is None:
            return mean, variance
        if step.is_trial:  # a trial is about the loss: statistics would mix its rows
            return ops.zeros_like(mean), ops.ones_like(variance)
        weight = _weight(inputs, mask, mean)
        name = step.name(self.path)
        sums = total(ops.concatenate([mean * weight, ops.reshape(weight, (1,))]), f"{name}.mean")
        middle, rows = sums[:-1] / sums[-1], sums[-1]
        # Sum squared distances from the mean: E[x^2] - E[x]^2 would lose a small variance in rounding.
        spread = total((variance + ops.square(mean - middle)) * weight, f"{name}.variance")
        return middle, spread / rows

    layer._moments = moments


def _weight(inputs: Any, mask: Any, mean: Any) -> Any:
    if mask is not None:
        return ops.sum(ops.cast(mask, mean.dtype))
    return ops.cast(ops.size(inputs), mean.dtype) / ops.cast(ops.size(mean), mean.dtype)
