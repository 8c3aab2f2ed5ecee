"""Callbacks that make weights and metrics the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from distrun.graphs.local_variables import LocalVariables, without
from distrun.keras import gradients
from distrun.keras.callbacks.base import Callback, Logs, name_between_steps, ranks_of
from distrun.keras.choice import CHOSEN
from distrun.keras.gradients import Distributed
from distrun.keras.library import state_of
from distrun.keras.values.logs import Path, name_of, numbers_of, replaced
from distrun.keras.variables import broadcast_variables
from distrun.runtime.collectives import consistency
from distrun.runtime.process_sets.process_set import ProcessSet


class BroadcastGlobalVariablesCallback(Callback):
    """Starts all ranks with the root's weights and optimizer state, whether fresh or loaded from a checkpoint.

    The broadcast happens before the first step or, if some rank's model is not built by then (on TensorFlow a model
    without input shape is not), after it. Each rank keeps its states of random generators and its local variables:
    those given here, and those registered with the optimizer.
    """

    _supports_tf_logs = True  # in Keras 2: so that Keras does not wait for the logs of each step

    def __init__(
        self,
        root_rank: int = 0,
        device: str = "",
        local_variables: Iterable[Any] | None = None,
        process_set: ProcessSet | None = None,
    ) -> None:
        """Arguments:

        root_rank: the rank, in the world, that the others start from.
        device: accepted for Horovod's sake.
        local_variables: variables that each rank has for itself. They and their slots in the optimizer stay.
        process_set: the ranks that start from the same state. None: the ranks of the `DistributedOptimizer`.
        """
        super().__init__()
        self.root_rank = root_rank
        self.process_set = process_set
        self._local = LocalVariables()
        for variable in local_variables or ():
            self._local.add(variable)
        self._is_due = True
        self._has_stepped = False

    def register_local_var(self, var: Any) -> None:
        """Leave the variable `var` to each rank."""
        self._local.add(var)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Broadcast, if the model is built on all ranks."""
        optimizer = self.model.optimizer
        ranks = ranks_of(optimizer, self.process_set)
        self._is_due, self._has_stepped = ranks.included(), False
        if self._is_due and gradients.all_built(self.model, CHOSEN, name_between_steps(optimizer), ranks):
            self._broadcast()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Broadcast after the first step, if it could not be done before. Layers that are not built now are unused."""
        if self._is_due and self._has_stepped:
            self._broadcast()
        self._has_stepped = True

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Broadcast after an epoch of a single step, if it could not be done before."""
        if self._is_due:
            self._broadcast()

    def _broadcast(self) -> None:
        model, optimizer = self.model, self.model.optimizer
        CHOSEN.build(optimizer, model.trainable_variables)
        local = self._local.all()
        if isinstance(optimizer, Distributed):
            local += gradients.local_variables(optimizer).all()
        shared = without(model.weights + state_of(optimizer), local + CHOSEN.slots(optimizer, local))
        broadcast_variables(shared, self.root_rank, ranks_of(optimizer, self.process_set))
        self._is_due = False


class MetricAverageCallback(Callback):
    """Averages the metrics of an epoch, including those of validation, over the ranks, for the callbacks after it.

    Logs may be any nest of dictionaries and lists. Text and None in them stay as they are.

    Raises:
        MismatchError: the ranks do not have the same metrics.
    """

    def __init__(self, device: str = "", process_set: ProcessSet | None = None) -> None:
        """`device` is accepted for Horovod's sake. `process_set`: the ranks to average over. None: the ranks of the
        `DistributedOptimizer`."""
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Replace the values in `logs` by their averages."""
        optimizer = self.model.optimizer
        ranks = ranks_of(optimizer, self.process_set)
        if logs and ranks.included() and ranks.size() > 1:
            logs.update(replaced(logs, _averages(numbers_of(logs), name_between_steps(optimizer), ranks)))


def _averages(values: dict[Path, Any], operation: str, ranks: ProcessSet) -> dict[Path, Any]:
    notes = consistency.compare(
        [name_of(path) + (f" {list(value.shape)}" if value.ndim else "") for path, value in values.items()],
        "the metrics to average",
        operation,
        b"".join(value.astype(np.float64).tobytes() for value in values.values()),
        ranks,
    )
    average = np.mean([np.frombuffer(note) for note in notes], axis=0)
    averages = {}
    for path, value in values.items():
        part, average = np.split(average, [value.size])
        averages[path] = part.reshape(value.shape)
    return averages
