"""Shared parts of the rank programs: features to try in order, a small model, and training it in one process."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import distrun.keras as hvd
from distrun.graphs.prepared import Prepared
from distrun.keras.choice import CHOSEN

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
keras, BACKEND = CHOSEN.PACKAGE, CHOSEN.BACKEND  # Keras 3, or tf_keras
ROWS = 16  # in a combined batch

_features: list[tuple[str, Callable[[], Any]]] = []


def feature(name: str, *backends: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a feature, for these backends or all. What it returns, or its error, is reported for each rank."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        if not backends or BACKEND in backends:
            _features.append((name, function))
        return function

    return register


def run_features() -> None:
    """Run those that the command line names, or all; rank 0 prints a line of JSON for each."""
    for name, function in _features:
        if name not in (sys.argv[1:] or [name]):
            continue
        keras.utils.set_random_seed(7)
        started = time.process_time()
        try:
            result = {"ok": True, "value": function()}
        except Exception as error:
            result = {"ok": False, "error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        results = hvd.allgather_object(result, "result")
        if RANK == 0:
            spent = time.process_time() - started
            print("FEATURE " + json.dumps({"name": name, "ranks": results, "seconds": round(spent, 2)}), flush=True)


# Data and models ------------------------------------------------------------------------------------------------------


def data(batches: int = 6, last: int = ROWS) -> tuple[Any, Any]:
    """Inputs and labels of some combined batches; the last one may have another number of rows."""
    random = np.random.default_rng(0)
    rows = (batches - 1) * ROWS + last
    return random.normal(size=(rows, 6)).astype("float32"), random.integers(0, 3, rows)


def mine(array: Any) -> Any:
    """This rank's part of each combined batch, a batch after the other."""
    parts = [array[start : start + ROWS] for start in range(0, len(array), ROWS)]
    return np.concatenate([np.array_split(part, SIZE)[RANK] for part in parts])


def network(seed: int = 1, **options: Any) -> Any:
    """A small model. Its names have other numbers on each rank, since the reference is built on rank 0 only."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, activation="tanh", **options), keras.layers.Dense(3, dtype="float32")]
    )


def loss() -> Any:
    """The mean over the batch: that over equal parts is that of the whole."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def callbacks() -> list[Any]:
    """Return the callbacks that most programs use."""
    return [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]


def fit(model: Any, batches: int = 6, **options: Any) -> dict[str, Any]:
    """Train on this rank's part of some combined batches; return the logs."""
    x, y = data(batches)
    usual = {"batch_size": ROWS // SIZE, "verbose": 0, "shuffle": False}
    return model.fit(mine(x), mine(y), **usual | options).history


def train(
    make: Callable[[], Any],
    build: Callable[..., Any] = network,
    run: Callable[[Any, Any, Any, int], Any] | None = None,
    wrap: dict[str, Any] | None = None,
    given: tuple[Any, Any] | None = None,
    compared: Callable[[Any], list[Any]] = lambda model: model.get_weights(),
    **options: Any,
) -> dict[str, Any]:
    """Train on all ranks, from other weights each, and on rank 0 alone; how far the results are apart."""

    def plainly(model: Any, x: Any, y: Any, rows: int) -> None:
        # Broadcasting first: the reference has no other ranks.
        before = callbacks() if rows < ROWS else []
        model.fit(x, y, batch_size=rows, epochs=2, shuffle=False, verbose=0, callbacks=before)

    x, y = given or data()
    model = build(1 + RANK)
    model.compile(hvd.DistributedOptimizer(make(), **(wrap or {})), loss(), **options)
    if run is not None:
        hvd.broadcast_variables(model.weights)
    with count_reductions() as count:
        (run or plainly)(model, mine(x), mine(y), ROWS // SIZE)
        same = same_on_all_ranks(compared(model))  # waits for steps that are still under way
    outcome = {"same": same, "reductions": count.value, "steps": 2 * -(-len(x) // ROWS)}
    if RANK == 0:
        alone = build(1)
        alone.compile(make(), loss(), **options)
        (run or plainly)(alone, x, y, ROWS)
        outcome["difference"] = difference(compared(model), compared(alone))
        outcome["moved"] = difference(compared(model), compared(build(1)))
    return outcome


# Comparing ------------------------------------------------------------------------------------------------------------


class count_reductions:  # noqa: N801 - reads as what it does
    """Counts the collectives on gradients."""

    def __enter__(self) -> Any:
        self.value = 0
        self._plain = Prepared.reduction

        def reduction(prepared: Any, *args: Any) -> Any:
            self.value += 1
            return self._plain(prepared, *args)

        Prepared.reduction = reduction  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Prepared.reduction = self._plain  # type: ignore[method-assign]


def difference(left: list[Any], right: list[Any]) -> float:
    """The largest difference between two lists of arrays."""
    return max(float(np.abs(np.asarray(a, "float64") - b).max()) for a, b in zip(left, right, strict=True))


def same_on_all_ranks(arrays: list[Any]) -> bool:
    """Whether all ranks hold the same bits."""
    bits = [np.asarray(array).tobytes() for array in arrays]
    return all(others == bits for others in hvd.allgather_object(bits, "bits"))


def error_of(function: Callable[[], Any]) -> str:
    """The class and text of the error that `function` raises; empty if it raises none."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
