"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distrun.errors import UsageError
from distrun.runtime.operations.reduction import Sum
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.tensorflow.collectives import allreduce


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """`tf.keras.layers.BatchNormalization` with the mean and variance over all ranks' rows. Ranks may have different
    numbers of rows."""

    def __init__(self, fused: bool = False, *, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        """
        Args:
            fused: accepted for Horovod's sake. Only False is possible.
            process_set: the ranks whose rows are normalized together.
            kwargs: the arguments of `tf.keras.layers.BatchNormalization`.

        Raises:
            UsageError: `fused` is true.
        """
        if fused:
            raise UsageError("fused=True normalizes on one device: leave it out of SyncBatchNormalization")
        if _IS_LEGACY:
            kwargs["fused"] = False  # otherwise 4-dimensional batches take a fused path without `_moments`
        super().__init__(**kwargs)
        self._process_set = process_set

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Called with `mask` by Keras 3, with `reduction_axes, keep_dims, mask=None` by Keras 2."""
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if self._process_set.stays_one():
            return mean, variance
        mask = kwargs.get("mask", None if _IS_LEGACY else args[0] if args else None)
        rows = tf.size(inputs) / tf.size(mean) if mask is None else tf.reduce_sum(tf.cast(mask, tf.float64))
        weight = tf.cast(rows, mean.dtype)
        both = tf.stack([mean * weight, tf.fill(tf.shape(mean), weight)])
        total, weights = tf.unstack(allreduce(both, op=Sum, process_set=self._process_set))
        middle = total / weights
        # From distances to the mean, because in float32 E[x^2] - E[x]^2 loses its digits if the mean is large.
        spread = allreduce((variance + (mean - middle) ** 2) * weight, op=Sum, process_set=self._process_set)
        return middle, spread / weights


_IS_LEGACY = tf.keras.layers.BatchNormalization.__module__.startswith("tf_keras.")
"""Whether tf.keras is Keras 2."""
