"""Callbacks for `fit`, with Horovod's names and arguments.

Their order in the list matters: `BroadcastGlobalVariablesCallback` first, `MetricAverageCallback` before callbacks that
look at metrics (EarlyStopping, ReduceLROnPlateau, checkpoints). Every rank must have the same callbacks, except for
`OnRankZero`.

None of them acts at the end of a batch, where Keras would have to wait for each step's result.

The room: `base` has what they share. `synchronising` broadcasts weights and averages metrics, `learning_rates` adapts
rates to the number of ranks, `first_rank` has callbacks that act on rank 0 only, and `reporting` reports a trial's
metric to a sweep.
"""

from __future__ import annotations

from distrun.keras.callbacks.first_rank import BestModelCheckpoint, OnRankZero
from distrun.keras.callbacks.learning_rates import LearningRateScheduleCallback, LearningRateWarmupCallback
from distrun.keras.callbacks.reporting import ReportCallback
from distrun.keras.callbacks.synchronising import BroadcastGlobalVariablesCallback, MetricAverageCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "OnRankZero",
    "ReportCallback",
]
