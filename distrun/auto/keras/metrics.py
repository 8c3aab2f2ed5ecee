"""Metrics of all ranks together: the state of a metric is added up, which is exact for means, counts and curves."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from distrun.auto.keras import steps
from distrun.auto.keras.parts import Part
from distrun.keras.values import array_of
from distrun.runtime import collectives, world
from distrun.runtime.operations.reduction import Sum


def install() -> None:
    """Have means over batches, of one number for each, count all batches alike from now on: a rank's number counts as
    much as its rows of the batch."""
    plain = keras.metrics.Mean.update_state

    @functools.wraps(plain)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        step = steps.current()
        if step is not None and not step.is_trial and sample_weight is None and _is_number(values):
            sample_weight = step.weight()
        return plain(self, values, sample_weight)

    keras.metrics.Mean.update_state = update_state


def variables_of(model: Any) -> list[Any]:
    """Return the variables of a model's metrics, each of them once."""
    found = {id(variable): variable for metric in model.metrics for variable in metric.variables}
    return list(found.values())


def combine(model: Any) -> None:
    """Give all ranks the metrics of all of them."""
    variables = variables_of(model)
    if not variables:
        return
    arrays = [np.asarray(array_of(variable)) for variable in variables]
    together = np.concatenate([array.astype(np.float64).reshape(-1) for array in arrays])
    together = collectives.allreduce(together, "auto.keras.metrics", Sum)
    for variable, array in zip(variables, arrays, strict=True):
        mine, together = np.split(together, [array.size])
        if getattr(variable, "aggregation", "sum") == "mean":
            mine = mine / world.size()
        if getattr(variable, "aggregation", "sum") != "only_first_replica":
            variable.assign(mine.reshape(array.shape).astype(array.dtype))


def combined_logs(logs: dict[str, Any], part: Part) -> dict[str, Any]:
    """Return the logs of the last batch of an epoch, averaged by rows: what a `train_step` returns that keeps no
    metrics."""
    names = [name for name in sorted(logs) if np.ndim(array_of(logs[name])) == 0]
    rows = float(part.rows) if world.rank() == 0 or part.total >= world.size() else 0.0
    own = [*(float(array_of(logs[name])) * rows if rows else 0.0 for name in names), rows]
    *sums, total = collectives.allreduce(np.array(own), "auto.keras.logs", Sum).tolist()
    return {**logs, **{name: value / total for name, value in zip(names, sums, strict=True)}}


def agreed(result: Any) -> Any:
    """Return rank 0's result of an evaluation: others may differ in the last bits, and decisions follow from it."""
    numbers = list(_numbers(result))
    if not numbers:
        return result
    values = iter(collectives.broadcast(np.array(numbers, np.float64), 0, "auto.keras.evaluate").tolist())
    if isinstance(result, dict):
        return {name: _replaced(value, values) for name, value in result.items()}
    if isinstance(result, (list, tuple)):
        return type(result)(_replaced(value, values) for value in result)
    return _replaced(result, values)


def _numbers(result: Any) -> Iterator[float]:
    members = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else [result]
    return (float(each) for each in members if isinstance(each, (int, float)))


def _replaced(value: Any, values: Iterator[float]) -> Any:
    return next(values) if isinstance(value, (int, float)) else value


def _is_number(values: Any) -> bool:
    return len(values.shape if hasattr(values, "shape") else np.shape(values)) == 0
