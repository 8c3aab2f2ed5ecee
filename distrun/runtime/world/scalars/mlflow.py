"""Writing figures to the MLflow run that a script has active."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping
from typing import Any


class ActiveRun:
    """The active run of any thread of the script."""

    title = "MLflow"

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures, if a run is active."""
        fluent = sys.modules.get("mlflow.tracking.fluent")
        run = None if fluent is None else _active_run(fluent)
        if run is None:
            return
        mlflow: Any = importlib.import_module("mlflow")  # already imported, since its submodule is
        now = int(time.time() * 1000)
        metrics = [mlflow.entities.Metric(name, value, now, step) for name, value in figures.items()]
        mlflow.MlflowClient().log_batch(run.info.run_id, metrics=metrics)


def _active_run(fluent: Any) -> Any:
    """Return the active run that was started last, in any thread. MLflow itself knows only the current thread's."""
    stack = getattr(fluent, "_active_run_stack", None)
    by_thread = getattr(stack, "get_all_thread_values", None)
    stacks = [stack] if by_thread is None else list(by_thread().values())
    runs = [run for one in stacks for run in (one or ())]
    return max(runs, key=lambda run: run.info.start_time, default=None)
