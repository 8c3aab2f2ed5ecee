"""Callbacks for `fit`, with Horovod's names and arguments.

Their order in the list matters: `BroadcastGlobalVariablesCallback` first, `MetricAverageCallback` before whatever looks
at metrics (EarlyStopping, ReduceLROnPlateau, checkpoints), and every rank must have the same ones, but for
`OnRankZero`.

None of them acts at the end of a batch, where Keras would have to wait for each step's result.

`base` has what they share. `synchronising` brings weights and metrics of the ranks together, `learning_rates` follow
the number of ranks, `first_rank` has what only rank 0 does, and `reporting` tells a sweep how well a trial does.
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
