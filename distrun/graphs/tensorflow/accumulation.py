"""Accumulation: sums gradients over several backward passes before they are reduced once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Reduce = Callable[[list[Any]], list[Any]]

_UNINITIALISED = (
    "distrun: the sums of gradients for backward_passes_per_step are local variables, which are not initialised: run "
    "tf.compat.v1.local_variables_initializer() beside global_variables_initializer()"
)


class Accumulation:
    """Sums of gradients, in variables that are not saved in checkpoints.

    In a TensorFlow 1 graph, they are local variables, which tf.compat.v1.local_variables_initializer initialises.
    `made` is called with each of these variables.
    """

    def __init__(self, passes: int, made: Callable[[Any], None] = lambda variable: None) -> None:
        self.passes = passes
        self._made = made
        self._owners: list[Any] = []
        self._sums: list[Any] = []
        self._count: Any = None

    @tf.autograph.experimental.do_not_convert
    def add(self, gradients: Sequence[Any], variables: Sequence[Any], reduce: Reduce) -> tuple[tf.Tensor, list[Any]]:
        """Add the gradients of a pass.

        Returns:
            Whether to update the variables now, a bool scalar, and the gradients for this, which are `reduce(sums)`. In
            other passes, they are the sums so far. None stays None.
        """
        places = [place for place, gradient in enumerate(gradients) if gradient is not None]
        self._prepare([gradients[place] for place in places], [variables[place] for place in places])
        with tf.control_dependencies(self._checks()):
            totals = [
                total.assign_add(tf.convert_to_tensor(gradients[place]))
                for total, place in zip(self._sums, places, strict=True)
            ]
            is_due = tf.equal(self._count.assign_add(1) % self.passes, 0)

        def together() -> list[tf.Tensor]:
            given: list[Any] = [None] * len(gradients)
            for place, total in zip(places, totals, strict=True):
                given[place] = tf.identity(total)
            results = reduce(given)
            reduced = [results[place] for place in places]
            with tf.control_dependencies(reduced):
                emptied = [total.assign(tf.zeros_like(total)) for total in self._sums]
            with tf.control_dependencies([each for each in emptied if each is not None]):
                return [tf.identity(gradient) for gradient in reduced]

        def so_far() -> list[tf.Tensor]:
            return [tf.identity(total) for total in totals]

        results: list[Any] = [None] * len(gradients)
        current = tf.nest.flatten(tf.cond(is_due, together, so_far)) if places else []
        for place, gradient in zip(places, current, strict=True):
            results[place] = gradient
        return is_due, results

    def drop(self) -> None:
        """Reset the sums and the count of passes. Only where TensorFlow runs eagerly."""
        for each in (self._count, *self._sums) if self._count is not None else ():
            each.assign(tf.zeros_like(each))

    def _checks(self) -> list[Any]:
        """Return the operations of a TensorFlow 1 graph that fail if local variables are not initialised."""
        if tf.executing_eagerly() or tf.inside_function():
            return []
        return [tf.debugging.Assert(self._count.is_initialized(), [_UNINITIALISED])]

    def _prepare(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        if self._count is not None and list(map(id, variables)) == list(map(id, self._owners)):
            return
        self._owners = list(variables)
        with tf.init_scope():
            self._count = _variable(tf.constant(0, tf.int64), "passes")
            self._sums = [
                _variable(tf.zeros(variable.shape, gradient.dtype), "sum_of_gradients")
                for variable, gradient in zip(variables, gradients, strict=True)
            ]
        for each in (self._count, *self._sums):
            self._made(each)


def _variable(value: tf.Tensor, name: str) -> Any:
    return tf.compat.v1.Variable(
        value, trainable=False, name=name, use_resource=True, collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
    )


@tf.autograph.experimental.do_not_convert
def when(is_due: tf.Tensor, update: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Call `update` if `is_due`, else `otherwise`. In a graph, return the operation that does so.

    Each of them returns an operation, a tensor or None.
    """

    def done(function: Callable[[], Any]) -> tf.Tensor:
        result = function()
        with tf.control_dependencies([] if result is None or tf.executing_eagerly() else [result]):
            return tf.constant(True)

    result = tf.cond(is_due, lambda: done(update), lambda: done(otherwise))
    return None if tf.executing_eagerly() else tf.group(result)
