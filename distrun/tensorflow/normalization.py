"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.operations.reduction import Sum
from distrun.tensorflow.collectives import allreduce


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """`tf.keras.layers.BatchNormalization` by the mean and variance of all ranks' rows, however many each has."""

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        """
        Raises:
            UsageError: `fused` is true.
        """
        if fused:
            raise UsageError("fused=True normalizes on one device: leave it out of SyncBatchNormalization")
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, mask)
        if world.size() == 1:
            return mean, variance
        rows = tf.size(inputs) / tf.size(mean) if mask is None else tf.reduce_sum(tf.cast(mask, tf.float64))
        weight = tf.cast(rows, mean.dtype)
        total, weights = tf.unstack(allreduce(tf.stack([mean * weight, tf.fill(tf.shape(mean), weight)]), op=Sum))
        middle = total / weights
        # By distances from the mean: the difference of large squares would be lost in rounding.
        spread = allreduce((variance + (mean - middle) ** 2) * weight, op=Sum)
        return middle, spread / weights
