"""Starting from the same state: broadcasts of the variables of models and optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from distrun.errors import UsageError
from distrun.keras.choice import CHOSEN
from distrun.keras.gradients import entry_of
from distrun.keras.values import array_of
from distrun.runtime.collectives import consistency
from distrun.runtime.collectives.copies import broadcast_arrays
from distrun.runtime.operations import dtypes
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set


def broadcast_variables(
    variables: Iterable[Any], root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite variables with the root's: `broadcast_variables(model.weights + optimizer.variables)`.

    Raises:
        UsageError: `variables` is empty, since the model has not been built yet.
        MismatchError: the ranks do not have the same names, shapes and dtypes.
    """
    variables = list(variables)
    if not variables:
        raise UsageError(
            "broadcast_variables was given no variables: a model has none until it is built, so call "
            "model.build(input_shape) or the model itself on some data first, or give fit a "
            "BroadcastGlobalVariablesCallback, which waits for that"
        )
    if process_set.size() == 1:
        return
    consistency.compare(
        [entry_of(variable) for variable in variables],
        "the variables to broadcast",
        "keras.broadcast_variables",
        process_set=process_set,
    )
    # Copies, since a backend's own memory must not be written to; np.array keeps 0 dimensions.
    arrays = [np.array(array_of(variable)) for variable in variables]
    for array in arrays:
        dtypes.name_of(array.dtype)  # refuses what cannot travel
    broadcast_arrays(arrays, root_rank, "keras.broadcast_variables", process_set)
    CHOSEN.assign(variables, arrays)


def broadcast_global_variables(root_rank: int = 0) -> None:
    """Overwrite all global variables of a graph of TensorFlow 1 with the root's. For tf_keras without eager execution.

    Raises:
        UsageError: elsewhere, where there is no list of all variables. The message names the alternatives.
    """
    if CHOSEN.BACKEND == "tensorflow":
        import tensorflow as tf

        if not tf.executing_eagerly():
            broadcast_variables(tf.compat.v1.global_variables(), root_rank)
            return
    raise UsageError(
        f"broadcast_global_variables({root_rank}) has nothing to go by where TensorFlow runs eagerly and in Keras 3, "
        "which keep no list of all variables: call broadcast_variables(model.weights + optimizer.variables, "
        f"root_rank={root_rank}), or give fit a BroadcastGlobalVariablesCallback"
    )
