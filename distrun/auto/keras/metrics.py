"""Metrics of all ranks together: states are summed over the ranks, which is exact for means, counts and curves."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from distrun.auto.keras import steps
from distrun.auto.keras.collectives import is_alone
from distrun.auto.output import tell
from distrun.auto.refusing import refuse
from distrun.keras.values import array_of
from distrun.keras.values.logs import Path, numbers_of, plain, replaced
from distrun.runtime import collectives
from distrun.runtime.operations.reduction import Sum
from distrun.runtime.world import world

_LINES = (
    "self.total.assign_add(...)  # in update_state: states that are sums over the rows",
    "model.evaluate(x, y)        # or after the training: there each rank sees all rows",
)

_untried: list[tuple[Any, Any, Any]] = []  # the script's own metrics, with the shapes and dtypes of a batch
_noted: weakref.WeakSet[Any] = weakref.WeakSet()  # the `CompileMetrics` whose metrics have been noted


def install() -> None:
    """Change the functions that update metrics.

    `Mean` gives every batch the same weight if it gets one number per batch, so a rank's number must be weighted by the
    rank's rows of the batch. The script's own metrics are noted, to be tried by `check`.
    """
    from keras.src.trainers.compile_utils import CompileMetrics

    compiled = CompileMetrics.update_state

    @functools.wraps(compiled)
    def update_compiled(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        result = compiled(self, y_true, y_pred, sample_weight)
        if steps.current() is not None and self not in _noted:
            _noted.add(self)
            for group in (self._flat_metrics, self._flat_weighted_metrics):
                for each, true, predicted in zip(group, self._flatten_y(y_true), self._flatten_y(y_pred), strict=False):
                    note(each.metrics if each else (), true, predicted)
        return result

    CompileMetrics.update_state = update_compiled
    plain = keras.metrics.Mean.update_state

    @functools.wraps(plain)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        step = steps.current()
        if step is not None and not step.is_trial and sample_weight is None and _is_number(values):
            sample_weight = step.weight()
        return plain(self, values, sample_weight)

    keras.metrics.Mean.update_state = update_state


def note(used: Iterable[Any], y_true: Any, y_pred: Any) -> None:
    """Note the script's own among the metrics `used`, with the shapes and dtypes of their arguments."""
    for metric in used:
        function = getattr(metric, "_fn", None)
        if not steps.are_of_keras(type(metric), function):
            specs = [(tuple(each.shape[1:]), keras.backend.standardize_dtype(each.dtype)) for each in (y_true, y_pred)]
            _untried.append((metric, *specs))


def check() -> None:
    """Try the script's own metrics that are new since the last call: on two generated batches, and on both together.

    Raises:
        Refusal: the states of a metric do not add up, as `combine` needs.
    """
    while _untried:
        metric, *specs = _untried.pop(0)
        generator = np.random.default_rng(0)
        batches = [[_made(generator, *spec) for spec in specs] for _ in range(2)]
        batches.append([np.concatenate(each) for each in zip(*batches, strict=True)])
        try:
            function = getattr(metric, "_fn", None)
            is_right = _adds_up(metric, batches) if function is None else _is_mean(metric, batches)
        except Exception:
            continue  # it does not accept such batches, so nothing is known about it
        if is_right:
            continue
        if function is None:
            refuse(
                f"the metric {metric.name} of the script does not add up: its state of a batch is not the sum of those "
                "of its halves, so the ranks' metrics do not make up that of the batch",
                _LINES,
            )
        if world.rank() == 0:
            tell(
                f"distrun --auto: warning: the metric {metric.name} is one number for a batch, and no mean over its "
                "rows: in training it is the mean of those of the ranks' parts; in evaluations and validations it is "
                "what it is in one process"
            )


def _made(generator: Any, shape: Any, dtype: str) -> Any:
    shape = (4, *(4 if each is None else each for each in shape))
    if "float" in dtype:
        return generator.uniform(0.1, 1.0, shape).astype("float32")
    return generator.integers(0, 2, shape).astype(dtype)


def _adds_up(metric: Any, batches: list[Any]) -> bool:
    kept = [(variable, array_of(variable)) for variable in metric.variables]
    states = []
    try:
        for batch in batches:
            metric.reset_state()
            metric.update_state(*map(keras.ops.convert_to_tensor, batch))
            states.append([np.asarray(array_of(variable), np.float64) for variable in metric.variables])
    finally:
        for variable, value in kept:
            variable.assign(value)
    for variable, first, second, both in zip(metric.variables, *states, strict=True):
        how = getattr(variable, "aggregation", "sum")
        expected = (first + second) / 2 if how == "mean" else first + second
        if how != "only_first_replica" and not np.allclose(both, expected, 1e-3, 1e-5):
            return False
    return True


def _is_mean(metric: Any, batches: list[Any]) -> bool:
    first, second, both = (
        np.asarray(keras.ops.convert_to_numpy(metric._fn(*map(keras.ops.convert_to_tensor, batch))), np.float64)
        for batch in batches
    )
    expected = (first + second) / 2 if both.ndim == 0 else np.concatenate([first, second])
    return expected.shape == both.shape and np.allclose(both, expected, 1e-3, 1e-5)


def variables_of(model: Any) -> list[Any]:
    """Return the variables of a model's metrics, without duplicates."""
    found = {id(variable): variable for metric in model.metrics for variable in metric.variables}
    return list(found.values())


def combine(model: Any) -> None:
    """Replace the state of a model's metrics by the sum, or the mean, over all ranks."""
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


def results_of(model: Any) -> dict[Path, Any]:
    """Return the numbers of a model's metrics by their paths in logs: by metric name, and as Keras flattens them."""
    return numbers_of({metric.name: metric.result() for metric in model.metrics}) | numbers_of(
        model.get_metrics_result()
    )


def combined_results(model: Any, logs: Any, part: steps.Part) -> Any:
    """Combine the metrics of all ranks, and return the logs of a `train_step` with their results.

    Numbers that are results of the model's metrics are replaced by the results for all ranks. Other numbers are
    averaged by rows.

    Args:
        model: the model.
        logs: what the last step has returned: any nest of numbers, text and None.
        part: this rank's part of that step's batch.
    """
    results = model.get_metrics_result()
    if isinstance(logs, dict) and logs.keys() == results.keys():  # then Keras logs the model's metrics anyway
        combine(model)
        return plain(model.get_metrics_result())
    before = results_of(model)
    combine(model)
    after = results_of(model)
    return _averaged(logs, part, before, after)


def combined_logs(logs: Any, part: steps.Part) -> Any:
    """Return the logs of a batch, any nest, with its scalars averaged over the ranks by rows."""
    return _averaged(logs, part, {}, {})


def _averaged(logs: Any, part: steps.Part, before: dict[Path, Any], after: dict[Path, Any]) -> Any:
    """Average the scalars in logs by rows. Numbers that equal those in `before` on all ranks are taken from `after`."""
    numbers = numbers_of(logs)
    scalars = [path for path, value in numbers.items() if not value.ndim]
    rows = float(part.rows) if world.rank() == 0 or part.total >= world.size() else 0.0
    # A part that does not count was left out of the metrics, so its logs cannot show what is a metric's result.
    known = [path in after and (not rows or _is_close(before[path], value)) for path, value in numbers.items()]
    own = [rows, *(float(numbers[path]) * rows if rows else 0.0 for path in scalars), *known]
    total, *sums = collectives.allreduce(np.array(own, np.float64), "auto.keras.logs", Sum).tolist()
    averages: dict[Path, Any] = {path: value / total for path, value in zip(scalars, sums, strict=False)}
    counts = dict(zip(numbers, sums[len(scalars) :], strict=True))
    return replaced(logs, averages | {path: after[path] for path in numbers if counts[path] == world.size()})


def _is_close(one: Any, other: Any) -> bool:
    return one.shape == other.shape and np.allclose(one, other, 1e-5)


def agreed(result: Any) -> Any:
    """Return rank 0's result of an evaluation, any nest.

    The other ranks' results may differ in the last bits, and the script may decide by them.
    """
    numbers = numbers_of(result)
    if not numbers or is_alone():
        return result
    together = np.concatenate([value.astype(np.float64).reshape(-1) for value in numbers.values()])
    together = collectives.broadcast(together, 0, "auto.keras.evaluate")
    for path, value in numbers.items():
        mine, together = np.split(together, [value.size])
        numbers[path] = mine.reshape(value.shape)
    return replaced(result, numbers)


def _is_number(values: Any) -> bool:
    return len(values.shape if hasattr(values, "shape") else np.shape(values)) == 0
