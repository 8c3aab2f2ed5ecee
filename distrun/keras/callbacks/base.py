"""The base class of the callbacks, and the ranks and names of their operations."""

from __future__ import annotations

from typing import Any

from distrun.keras import gradients
from distrun.keras.choice import CHOSEN
from distrun.keras.gradients import Distributed, outer_steps_of
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set

Callback: Any = CHOSEN.PACKAGE.callbacks.Callback
"""The base class of callbacks in the Keras behind `tf.keras`."""

Logs = dict[str, Any] | None


def name_between_steps(optimizer: Any) -> str:
    """Return the name for operations between steps: the name of the steps' operation, so that a rank which skips them
    gets an error with the others."""
    if outer_steps_of(optimizer) is not None:  # hosts are at different steps, and a host with one rank has no name
        return "keras.callback"
    return gradients.name_of_step(optimizer) or "keras.callback"


def ranks_of(optimizer: Any, given: ProcessSet | None) -> ProcessSet:
    """Return the ranks of a callback: `given` or, if None, the ranks that train with this optimizer, be it by every
    step or by outer steps."""
    if given is None and isinstance(optimizer, Distributed) and outer_steps_of(optimizer) is None:
        return optimizer.distrun_settings.process_set
    return given or global_process_set
