"""The base class of callbacks, and the ranks and the names of their operations."""

from __future__ import annotations

from typing import Any

from distrun.keras import gradients
from distrun.keras.choice import CHOSEN
from distrun.keras.gradients import Distributed, outer_steps_of
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set

Callback: Any = CHOSEN.PACKAGE.callbacks.Callback
"""The base class of callbacks, of the Keras that `tf.keras` is."""

Logs = dict[str, Any] | None


def name_between_steps(optimizer: Any) -> str:
    """Return the name for operations between steps: the steps' own, so that a rank which skips them clashes with the
    rest."""
    if outer_steps_of(optimizer) is not None:  # hosts are at different steps, and one with a single rank names none
        return "keras.callback"
    return gradients.name_of_step(optimizer) or "keras.callback"


def ranks_of(optimizer: Any, given: ProcessSet | None) -> ProcessSet:
    """Return the ranks that a callback concerns: those it was given or, if None, those that train together, now and
    then or always."""
    if given is None and isinstance(optimizer, Distributed) and outer_steps_of(optimizer) is None:
        return optimizer.distrun_settings.process_set
    return given or global_process_set
