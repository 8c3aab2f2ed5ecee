"""Elastic training with TensorFlow: `tf.function`, tapes, and sessions of TensorFlow 1.

    @elastic.run
    def train(state):
        while state.step < steps:
            train_step(next(batches))  # a tf.function with a DistributedGradientTape
            state.step += 1
            state.advance()

    train(elastic.TensorFlowKerasState(model, optimizer, step=0))

A traced function is kept when ranks come and go. distrun's operations in it look up ranks and sizes when they run, and
so does `distrun.size_op()`. A number that the script computes while tracing, such as `1 / distrun.size()`, does not
change. For `model.fit` see `distrun.keras.elastic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from distrun.elastic import (
    HostsUpdatedInterrupt as HostsUpdatedInterrupt,
    ObjectState as ObjectState,
    State as State,
    run as run,
)
from distrun.elastic.graphs import GraphState, HostArrays
from distrun.errors import UsageError
from distrun.graphs.tensorflow.gradients import count_after_reductions, reductions
from distrun.tensorflow.gradients import entry_of

if TYPE_CHECKING:
    from distrun.keras.elastic.state import TensorFlowKerasState as TensorFlowKerasState

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


class TensorFlowState(GraphState):
    """A state of variables and objects: `TensorFlowState(model.variables + optimizer.variables, step=0)`.

    A rank is in the middle of a step if, since the last step boundary, a tape or an optimizer of distrun has reduced
    gradients or a counter among the variables has changed: a scalar of integers, such as an optimizer's `iterations` or
    a global step. A script that reduces gradients by `allreduce` needs such a variable.
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        """Make a state.

        Args:
            variables: variables of TensorFlow or Keras. None: all global variables of the graph.
            session: in a graph of TensorFlow 1, the session that holds their values. None: the default session.
            kwargs: objects. Each becomes an attribute.

        Raises:
            UsageError: `variables` is None while TensorFlow runs eagerly, where it keeps no list of variables.
        """
        if variables is None:
            if tf.executing_eagerly():
                raise UsageError(
                    "TensorFlowState needs variables where TensorFlow runs eagerly: give it "
                    "model.variables + optimizer.variables, say"
                )
            variables = tf.compat.v1.global_variables()
        variables = list(variables)
        super().__init__(variables=Variables(variables, session), **kwargs)
        self.variables = variables
        self.session = session


class Variables(HostArrays):
    """Variables of TensorFlow, and of Keras on TensorFlow."""

    def __init__(self, variables: Sequence[Any], session: Any = None) -> None:
        super().__init__()
        self._variables = list(variables)
        self._given_session = session
        scalars = [each for each in self._variables if len(each.shape) == 0]
        self._counters = [each for each in scalars if tf.as_dtype(each.dtype).is_integer]
        for counter in self._counters:
            count_after_reductions(counter)
        self._counted: list[Any] = []
        self._reductions = reductions()

    def mark(self) -> None:
        self._counted = self._values_of(self._counters)
        self._reductions = reductions()

    def is_clean(self) -> bool:
        return self._reductions == reductions() and self._values_of(self._counters) == self._counted

    def entries(self) -> list[str]:
        return [entry_of(variable, place) for place, variable in enumerate(self._variables)]

    def values(self) -> list[Any]:
        return self._values_of(self._variables)

    def assign(self, arrays: Sequence[Any]) -> None:
        session = self._session()
        for variable, array in zip(self._variables, arrays, strict=True):
            if session is None:
                variable.assign(array)
            else:
                session.run(variable.initializer, {variable.initializer.inputs[1]: array})

    def _values_of(self, variables: Sequence[Any]) -> list[Any]:
        session = self._session()
        if session is None:
            return [np.asarray(variable.numpy()) for variable in variables]
        return [np.asarray(value) for value in session.run(list(variables))]

    def _session(self) -> Any:
        """Return the session that holds the values, or None where TensorFlow runs eagerly."""
        if self._given_session is None and tf.executing_eagerly():
            return None
        session = self._given_session or tf.compat.v1.get_default_session()
        if session is None:
            raise UsageError("TensorFlowState has no session to ask for values: give it session=..., or a default one")
        return session


def __getattr__(name: str) -> object:
    if name != "TensorFlowKerasState":
        raise AttributeError(f"module 'distrun.tensorflow.elastic' has no attribute {name!r}")
    from distrun.keras.elastic.state import TensorFlowKerasState  # not before: it loads Keras

    return TensorFlowKerasState
