"""The places where a script writes figures: TensorBoard, by a SummaryWriter or Keras's callback, and MLflow."""

from __future__ import annotations

import importlib
import os
import sys
import time
import weakref
from collections.abc import Mapping
from functools import wraps
from typing import Any, Protocol

from distrun.host.instances import instances_of


class Sink(Protocol):
    """A place to write figures."""

    title: str

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures, if there is a place for them."""


class SummaryWriters:
    """The last SummaryWriter that the script has created and not closed."""

    title = "TensorBoard"

    def __init__(self) -> None:
        self._instances = Instances(
            ("torch.utils.tensorboard.writer", "SummaryWriter"), ("tensorboardX.writer", "SummaryWriter")
        )

    def write(self, figures: Mapping[str, float], step: int) -> None:
        is_open = (one for one in reversed(self._instances.all()) if getattr(one, "file_writer", None) is not None)
        writer = next(is_open, None)
        if writer is not None:
            for name, value in figures.items():
                writer.add_scalar(name, value, step)
            writer.flush()


class KerasCallbacks:
    """The last `TensorBoard` callback that the script has created and used in `fit`."""

    title = "TensorBoard"

    def __init__(self) -> None:
        self._instances = Instances(
            ("keras.src.callbacks.tensorboard", "TensorBoard"), ("tf_keras.src.callbacks", "TensorBoard")
        )
        self._folder = ""
        self._writer: Any = None

    def write(self, figures: Mapping[str, float], step: int) -> None:
        fitted = [one for one in self._instances.all() if getattr(one, "_train_dir", None)]
        if not fitted:
            return
        import tensorflow as tf

        folder = os.path.join(fitted[-1].log_dir, "distrun")  # next to `train` and `validation`
        if folder != self._folder:
            self._folder, self._writer = folder, tf.summary.create_file_writer(folder)
        with self._writer.as_default():
            for name, value in figures.items():
                tf.summary.scalar(name, value, step=step)
        self._writer.flush()


class ActiveRun:
    """The active run of any thread of the script."""

    title = "MLflow"

    def write(self, figures: Mapping[str, float], step: int) -> None:
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


class Instances:
    """The objects of some classes, from the time when a class's module is imported."""

    def __init__(self, *places: tuple[str, str]) -> None:
        """Args: the names of modules, which are not imported for this purpose, and of a class in each."""
        self._places = list(places)
        self._found: list[weakref.ref[Any]] = []

    def all(self) -> list[Any]:
        """Return the objects that exist, the oldest first."""
        for place in list(self._places):
            module = sys.modules.get(place[0])
            kind = getattr(module, place[1], None)  # None while the module is being imported
            if isinstance(kind, type):
                self._places.remove(place)
                self._watch(kind)
        self._found = [one for one in self._found if one() is not None]
        return [found for one in self._found if (found := one()) is not None]

    def _watch(self, kind: Any) -> None:
        plain = kind.__init__

        @wraps(plain)
        def noted(made: Any, *arguments: Any, **options: Any) -> None:
            plain(made, *arguments, **options)
            self._found.append(weakref.ref(made))

        kind.__init__ = noted
        # Once, after patching: the objects created before.
        self._found += map(weakref.ref, instances_of(kind))
