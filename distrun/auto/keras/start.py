"""A common start for all ranks, different random numbers for each rank after it, and comparisons of the ranks."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from distrun.auto import comparing
from distrun.auto.keras import metrics
from distrun.auto.keras.data import BatchRecord
from distrun.auto.keras.optimizers import optimizers_of
from distrun.auto.keras.steps import Part, part_of
from distrun.auto.refusing import refuse
from distrun.host.instances import instances_of
from distrun.keras.choice import CHOSEN
from distrun.keras.library import state_of
from distrun.keras.values import array_of
from distrun.keras.variables import broadcast_variables
from distrun.runtime import collectives
from distrun.runtime.world import world

_APART = 1_000_003  # between the seeds of two ranks
_SEED = "seed_generator_state"

_ACCUMULATOR = "gradient_accumulator"
"""The suffix of the name of a variable that accumulates the gradients of this rank alone."""

_SEEDS = (
    "keras.utils.set_random_seed(1)  # before the data is made, split or shuffled",
    "numpy.random.default_rng(1)     # generators of your own have a seed",
    "sorted(names)                   # sets have another order in each process",
)

_WHY_OWN = "The training step computes it from the rows of a batch, of which each rank has its part"
_LINES_OWN = ("self.total = keras.metrics.Mean()  # what is only shown; the ranks' states are added up",)

_assigned: weakref.WeakKeyDictionary[Any, dict[int, weakref.ref[Any]]] = weakref.WeakKeyDictionary()
"""The TensorFlow variables that the training step of each model assigns, by identity."""

_IN_ORDER = "dataset.map(f, num_parallel_calls=1)  # random operations in f come in order; or stateless ones"


def start(model: Any) -> None:
    """Give all ranks the weights and the optimizers' state of rank 0, and each rank different random numbers."""
    optimizers = list(optimizers_of(model))
    if model.built:
        CHOSEN.build(model.optimizer, model.trainable_variables)
    variables = distinct([*model.variables, *(each for optimizer in optimizers for each in state_of(optimizer))])
    if variables:
        broadcast_variables(variables, 0)
    for variable in _generators(model):
        seed, count = np.asarray(array_of(variable)).tolist()
        variable.assign(np.array([(seed + _APART * world.rank()) % 2**31, count], variable.dtype))


def end(model: Any) -> None:
    """Give all ranks the same state of random generators again."""
    generators = _generators(model)
    if generators:
        broadcast_variables(generators, 0)


def average_accumulators(model: Any) -> None:
    """Give all ranks the average of the gradients that each has accumulated for itself.

    The next update stays the same, because it uses the average of these anyway. But now one rank may save the state, or
    another take it from this rank.
    """
    states = [each for optimizer in optimizers_of(model) for each in state_of(optimizer)]
    for place, variable in enumerate(each for each in states if each.name.endswith(_ACCUMULATOR)):
        variable.assign(collectives.allreduce(np.asarray(array_of(variable)), f"auto.keras.accumulated.{place}"))


def distinct(variables: list[Any]) -> list[Any]:
    """Return variables without duplicates."""
    return list({id(variable): variable for variable in variables}.values())


def _generators(model: Any) -> list[Any]:
    return [variable for variable in distinct(model.variables) if variable.path.rpartition("/")[2] == _SEED]


class Comparison:
    """The comparison of the ranks' data and weights."""

    def __init__(self, model: Any, record: BatchRecord) -> None:
        self._model = model
        self._record = record

    @property
    def sizes(self) -> list[int] | None:
        """The number of rows of each rank in a batch, or None if it is not known."""
        rows, size = self._record.rows, self._record.size
        return None if rows is None else [part_of(rows, rank, size).rows for rank in range(size)]

    @property
    def last(self) -> Part:
        """The part of the last step."""
        return self._record.last

    def check(self) -> None:
        """Compare the ranks' data and weights, and try new metrics.

        Raises:
            Refusal: the ranks have read different data, or have different weights, or a metric does not add up.
        """
        if hasattr(self._model, "jax_state_sync"):
            self._model.jax_state_sync()  # during an epoch the variables are empty
        metrics.check()
        own = np.array([self._record.seen(), weights_hash(self._model)], np.int64)
        everyone = collectives.allgather(own, "auto.keras.check").reshape(-1, 2)
        if (everyone[:, 0] != everyone[0, 0]).any():
            refuse(
                "the ranks read different data, so the parts of a batch that they compute are not of one batch: it is "
                "made, ordered or shuffled by a random generator without a seed, by time, by the order of a set, or "
                "by random operations of a parallel map, which come in any order",
                (*_SEEDS, _IN_ORDER) if "tensorflow" in sys.modules else _SEEDS,
            )
        if (everyone[:, 1] != everyone[0, 1]).any():
            who = np.flatnonzero(everyone[:, 1] != everyone[0, 1]).tolist()
            refuse(
                f"the weights of ranks {who} are not those of rank 0 any more: the script changes them, or what the "
                "optimizer does, by something that differs between processes",
                _SEEDS,
            )
        if _assigned.get(self._model):
            step = 0 if self._model.optimizer is None else int(array_of(self._model.optimizer.iterations))
            comparing.compare(lambda: _own(self._model), step, "script's own variables", _WHY_OWN, _LINES_OWN)


def weights_hash(model: Any) -> int:
    """Return a hash of a model's weights and of its optimizers' state."""
    total = 0
    states = [each for optimizer in optimizers_of(model) for each in state_of(optimizer)]
    states = [each for each in states if not each.name.endswith(_ACCUMULATOR)]
    for place, variable in enumerate(distinct([*model.weights, *states])):
        total += (place + 1) * _hash(np.asarray(array_of(variable)))
    return total % 2**62


def _hash(array: np.ndarray[Any, Any]) -> int:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    words = data[: data.size // 8 * 8].view(np.uint64)
    rest = int.from_bytes(data[words.size * 8 :].tobytes(), "little")
    return int(np.bitwise_xor.reduce(words)) + int(words.sum(dtype=np.uint64)) + rest


# The script's own variables of TensorFlow
# ------------------------------------------------------------------------------


@contextlib.contextmanager
def noting_assignments(model: Any) -> Iterator[None]:
    """A context for running or tracing a model's training step, which notes the variables that the step assigns."""
    from tensorflow.python.ops import resource_variable_ops

    owners = resource_variable_ops.BaseResourceVariable, resource_variable_ops.ResourceVariable
    names = ("assign", "assign_add", "assign_sub")
    plain = [(owner, name, vars(owner)[name]) for owner in owners for name in names if name in vars(owner)]
    found = _assigned.setdefault(model, {})

    def noting(assign: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(assign)
        def noted(variable: Any, *args: Any, **options: Any) -> Any:
            found[id(variable)] = weakref.ref(variable)
            return assign(variable, *args, **options)

        return noted

    for owner, name, assign in plain:
        setattr(owner, name, noting(assign))
    try:
        yield
    finally:
        for owner, name, assign in plain:
            setattr(owner, name, assign)


def assigned(model: Any) -> list[Any]:
    """Return the TensorFlow variables that a model's training step is known to assign."""
    return [found for each in _assigned.get(model, {}).values() if (found := each()) is not None]


def _own(model: Any) -> tuple[list[str], list[int]]:
    """Return the names and hashes of assigned variables that do not belong to a model, an optimizer or a metric."""
    held = [*model.variables, *(each for optimizer in optimizers_of(model) for each in state_of(optimizer))]
    held += [each for metric in instances_of(keras.metrics.Metric) for each in metric.variables]
    known = {id(each.value) for each in held}
    own = [each for each in assigned(model) if each.dtype.is_floating and id(each) not in known]
    return [each.name for each in own], [_hash(each.numpy()) % 2**62 for each in own]
