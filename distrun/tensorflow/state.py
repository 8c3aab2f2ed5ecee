"""Broadcasts of variables and objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from distrun.errors import NotOfferedError, UsageError
from distrun.graphs import signatures
from distrun.graphs.tensorflow import call
from distrun.graphs.tensorflow.facts import may_change
from distrun.runtime.collectives import objects
from distrun.runtime.collectives.call import broadcast_call
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.tensorflow.collectives import assign_all
from distrun.tensorflow.gradients import entry_of

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

_World = global_process_set


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = _World, inplace: bool = False
) -> Any:
    """Overwrite variables of TensorFlow or Keras with the root's: `broadcast_variables(model.variables, root_rank=0)`.

    In a graph it returns the operation that does so. `inplace` is accepted for Horovod's sake.

    Raises:
        UsageError: something in `variables` is not a variable.
        MismatchError: the ranks do not have the same names, shapes and dtypes.
    """
    variables = list(variables)
    for variable in variables:
        if not hasattr(variable, "assign"):
            raise UsageError(
                f"broadcast_variables takes variables, and {type(variable).__name__} is none: give it model.variables, "
                "say"
            )
    collective = broadcast_call("broadcast_variables", root_rank, process_set)
    if process_set.size() == 1 and not may_change():
        return None if tf.executing_eagerly() else tf.no_op()
    entries = [entry_of(variable, place) for place, variable in enumerate(variables)]
    number = signatures.signature_id(entries, "the variables to broadcast", process_set)
    if not variables:
        return None if tf.executing_eagerly() else tf.no_op()
    return assign_all(variables, call(variables, collective.named(str(number))))


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation that overwrites all global variables of a graph of TensorFlow 1 with the root's.

    Raises:
        NotOfferedError: TensorFlow runs eagerly, and so has no global variables. It is a RuntimeError, too.
    """
    if tf.executing_eagerly():
        raise NotOfferedError(
            "broadcast_global_variables is for graphs of TensorFlow 1: use broadcast_variables(model.variables, "
            "root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """A hook for sessions of TensorFlow 1: all ranks start from the root's variables, be they initialised or restored
    from a checkpoint."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """`device` is accepted for Horovod's sake."""
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None

    def begin(self) -> None:
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any, root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = _World
) -> Any:
    """Copy the root's object, which is pickled, to all ranks. `session` is accepted for Horovod's sake."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = _World
) -> Callable[[Any], Any]:
    """Return a function that calls `broadcast_object` with an object."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = _World
) -> list[Any]:
    """Return the objects of all ranks, in rank order. `session` is accepted for Horovod's sake."""
    return objects.allgather_object(obj, name, process_set)
