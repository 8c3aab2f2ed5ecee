"""A trial of a training step with code of the script: are a batch's gradients the average of its halves' gradients?

Keras's own losses and layers are known (`losses`, `functions`). Nothing is known about a loss that the script computes,
in a function, a `train_step`, a `compute_loss` or a layer's `add_loss`, nor about the script's own layers. But the loss
must be a mean over the rows, or the ranks' gradients do not add up to the gradients of the batch. So after the first
step, and after others at growing distances, the training step is tried: on the first half of the rank's rows, on the
second, and on both together. In a trial the optimizers update nothing, all random numbers are the same, and variables
get their values back afterwards. A loss that sums over its rows, or compares them with each other, is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from distrun.auto.comparing import TrialSchedule
from distrun.auto.keras import metrics, start, steps
from distrun.auto.refusing import refuse
from distrun.errors import in_one_line
from distrun.keras.choice import CHOSEN
from distrun.keras.values import array_of
from distrun.runtime import collectives
from distrun.runtime.operations.reduction import Sum

_SUM = "adds up its rows"
_NO_MEAN = (
    "is not the mean of the losses of its rows (the loss or a layer compares rows with each other, or gradients are "
    "changed before the optimizer has them)"
)
_SUM_LINES = ("loss = keras.ops.mean(loss_of_each_row)  # instead of keras.ops.sum(loss_of_each_row)",)
_LINES = (
    "loss = keras.ops.mean(loss_of_each_row)  # such as keras.losses.Dice(axis=(1, 2, 3)), which is of each row",
    "optimizer = keras.optimizers.Adam(global_clipnorm=1.0)  # where gradients are clipped",
)
_TOLERANCE = 0.002  # of the norm of a variable's gradient
_LOW_TOLERANCE = 0.1  # the same, if it is computed in 16 bits
_NEGLIGIBLE = 1e-4  # of the norm of all gradients: a smaller gradient may be the rounding error of zero


class StepTrial:
    """The trials of a model's training step."""

    def __init__(self, model: Any, is_own: bool) -> None:
        self._model = model
        self._is_needed = is_own
        self._schedule = TrialSchedule()
        self._calls: list[int] = []  # for each gradient, the number of the optimizer call that it was given to
        # In TensorFlow, variables: whether the next step makes a trial, and the results of that.
        self._is_due: Any = CHOSEN.BACKEND == "tensorflow" and _variable(True)
        self._results: Any = None
        self._of_jax: Any = None
        self.step: Any = None
        """The training step, with JAX."""

    def note(self, step: steps.PartialStep) -> None:
        """Note whether a step contains the script's own code, so that a trial is needed."""
        self._is_needed = self._is_needed or step.is_own

    def run_torch(self, train: Callable[[Any], Any], data: Any) -> None:
        """Try a training function with torch, if a trial is needed and due. See `verdict`."""
        if not self._advance():
            return
        import torch

        kept = [(variable, variable.value.detach().clone()) for variable in self._variables()]
        halves = _halves(data, ops.concatenate)
        results = self._tried(lambda batch: (train(batch), None)[1], halves)
        with torch.no_grad():
            for variable, value in kept:
                variable.assign(value)
        self._end(array_of(results))

    def run_jax(self, state: Any, data: Any) -> None:
        """Try the training step with JAX on a state and a batch, if a trial is needed and due. See `verdict`."""
        if not self._advance():
            return
        import jax

        def tried(state: Any, data: Any) -> Any:
            return self._tried(lambda batch: (self.step(state, batch), None)[1], _halves(data, ops.concatenate))

        if self._of_jax is None:
            self._of_jax = tried if self._model.run_eagerly else jax.jit(tried)
        self._end(np.asarray(self._of_jax(state, data)))

    def add_tensorflow(self, step: Callable[[Any], Any], data: Any) -> None:
        """Add a trial to the TensorFlow step that is being traced, if it is needed. The trial runs when it is due."""
        if not self._is_needed:
            return
        import tensorflow as tf

        is_due = self._is_due

        def tried() -> Any:
            kept = [(variable, tf.identity(variable.value)) for variable in self._variables()]
            kept += [(variable, tf.identity(variable)) for variable in start.assigned(self._model)]
            results = self._tried(lambda batch: (step(batch), None)[1], _halves(data, lambda both: tf.concat(both, 0)))
            for variable, value in kept:
                variable.assign(value)
            return results

        results = tf.cond(is_due, tried, lambda: tf.zeros((5, len(self._calls))))
        if self._results is None:
            self._results = _variable(np.zeros((5, len(self._calls)), np.float32))
        self._results.assign(tf.where(is_due, results, self._results))
        is_due.assign(False)

    def end_tensorflow(self) -> None:
        """Evaluate the trial, if there was one, in the TensorFlow step that has just run. See `verdict`."""
        if self._results is None:
            return
        if self._advance():
            self._end(self._results.numpy())
        if self._schedule.is_due_next:
            self._is_due.assign(True)

    def _advance(self) -> bool:
        return self._is_needed and self._schedule.advance(is_new=False, size=1)

    def _variables(self) -> list[Any]:
        return start.distinct([*self._model.variables, *metrics.variables_of(self._model)])

    def _tried(self, step: Callable[[Any], None], halves: tuple[Any, Any, Any]) -> Any:
        """Return five numbers for each gradient, as `verdict` expects them."""
        first, second, both = halves
        try:
            with _without_randomness(), _attributes_kept(self._model):
                made = [_gradients(step, batch) for batch in (first, second, first, both)]
        except Exception as error:
            refuse(
                f"the training step of {type(self._model).__name__} cannot be tried with half of its rows, to see "
                f"whether its loss is a mean over them ({in_one_line(error)})",
                _LINES,
            )
        self._calls = [call for call, gradients in enumerate(made[0]) for _ in gradients]
        columns = [_compared(*each) for calls in zip(*made, strict=True) for each in zip(*calls, strict=True)]
        return ops.transpose(ops.stack(columns))

    def _end(self, results: Any) -> None:
        sums = collectives.allreduce(np.asarray(results, np.float64), "auto.keras.trial", Sum)
        policy = str(getattr(self._model.dtype_policy, "compute_dtype", "float32"))
        for call in sorted(set(self._calls)):
            found = verdict(sums[:, np.array(self._calls) == call], _LOW_TOLERANCE if "16" in policy else _TOLERANCE)
            if found is not None:
                refuse(
                    f"the loss in the training step of {type(self._model).__name__} {found}; so the ranks' gradients "
                    "do not make up those of the batch",
                    _SUM_LINES if found == _SUM else _LINES,
                )


def verdict(squares: np.ndarray[Any, Any], tolerance: float) -> str | None:
    """Return what is wrong with a loss, or None if it seems to be a mean over its rows.

    Args:
        squares: squared norms, of shape [5, gradients]. They are: of the difference between a batch's gradient and the
            average of its halves' gradients, of the difference from their sum, of the difference between two
            computations of the first half's gradient, the sum for the halves' gradients, and the batch's gradient's.
        tolerance: how far a gradient of the batch may be from the average of its halves' gradients, relative to these.
    """
    if not np.isfinite(squares).all():
        return None  # the training is not finite either
    off_mean, off_sum, again, halves, whole = squares
    total = (halves + whole).sum()
    if not total:
        return None
    # If the step draws random numbers in its own way, only sizes can be compared: for a sum, the squared norm is 2 to 4
    # times the halves' mean, for a mean it is at most as large.
    if again.sum() > 1e-6 * total:
        return _SUM if whole.sum() > 2**0.5 * halves.sum() / 2 else None
    counts = halves + whole > _NEGLIGIBLE**2 * total
    if (off_mean <= tolerance**2 * halves)[counts].all():
        return None
    is_sum = (off_sum <= tolerance**2 * halves)[counts].all()
    return _SUM if is_sum else _NO_MEAN


def _compared(first: Any, second: Any, again: Any, both: Any) -> Any:
    gradients = [_dense(each) for each in (first, second, again, both)]
    first, second, again, both = (ops.cast(each, "float32") for each in gradients)
    differences = (both - (first + second) / 2, both - (first + second), again - first)
    off_mean, off_sum, off_again, *own = (ops.sum(ops.square(each)) for each in (*differences, first, second, both))
    return ops.stack([off_mean, off_sum, off_again, own[0] + own[1], own[2]])


def _variable(value: Any) -> Any:
    import tensorflow as tf

    with tf.init_scope():
        return tf.Variable(value, trainable=False)


def _dense(gradient: Any) -> Any:
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def _gradients(step: Callable[[Any], None], batch: Any) -> list[list[Any]]:
    """Return the gradients that each call of an optimizer gets in a training step on a batch."""
    rows = ops.shape(next(leaf for leaf in tree.flatten(batch) if leaf is not None))[0]
    with steps.step(steps.Part(0, rows, 1), 1, is_trial=True) as trial:
        step(batch)
    assert trial.gradients is not None
    return [[_copied(each) for each in gradients if each is not None] for gradients in trial.gradients]


def _copied(gradient: Any) -> Any:
    return gradient.detach().clone() if hasattr(gradient, "detach") else gradient


def _halves(batch: Any, concatenate: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """Return the first half of a batch's rows, the second half, and both. A single row serves as either half."""
    rows = ops.shape(next(leaf for leaf in tree.flatten(batch) if leaf is not None))[0]
    if isinstance(rows, int):
        half = max(1, rows // 2)
    else:
        import tensorflow as tf

        half = tf.maximum(1, rows // 2)
    first = tree.map_structure(lambda leaf: leaf if leaf is None else leaf[:half], batch)
    second = tree.map_structure(lambda leaf: leaf if leaf is None else leaf[rows - half :], batch)
    both = tree.map_structure(lambda a, b: a if a is None else concatenate([a, b]), first, second)
    return first, second, both


@contextlib.contextmanager
def _attributes_kept(model: Any) -> Iterator[None]:
    """A context that restores, at its end, the attributes of a model that are numbers or torch tensors."""
    before = [(name, value) for name, value in vars(model).items() if type(value) in (bool, int, float)]
    tensors = [(value, value.detach().clone()) for value in vars(model).values() if _is_plain_tensor(value)]
    try:
        yield
    finally:
        for name, value in before:
            object.__setattr__(model, name, value)
        for tensor, value in tensors:
            tensor.detach().copy_(value)


def _is_plain_tensor(value: Any) -> bool:
    return CHOSEN.BACKEND == "torch" and type(value).__name__ == "Tensor" and hasattr(value, "detach")


# Random numbers -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _without_randomness() -> Iterator[None]:
    """A context in which random floats are 0.5 and random integers 0, so that all rows get the same."""
    backend = keras.src.backend.random
    instead: list[tuple[Any, str, Any]] = [
        (backend, "dropout", lambda inputs, *args, **options: inputs),
        (backend, "shuffle", lambda x, *args, **options: x),
        *((backend, name, _even(getattr(backend, name))) for name in ("normal", "uniform", "randint")),
        *((backend, name, _even(getattr(backend, name))) for name in ("truncated_normal", "categorical")),
    ]
    if CHOSEN.BACKEND == "tensorflow":
        import tensorflow as tf

        instead += [(tf.random, name, _even(getattr(tf.random, name))) for name in ("normal", "uniform")]
    if CHOSEN.BACKEND == "torch":
        import torch

        drawing = ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "normal", "bernoulli")
        instead += [(torch, name, _even(getattr(torch, name))) for name in drawing]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in instead]
    try:
        for owner, name, function in instead:
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def _even(plain: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*args: Any, **options: Any) -> Any:
        drawn = plain(*args, **options)
        is_whole = "int" in keras.backend.standardize_dtype(drawn.dtype)
        return ops.full_like(drawn, 0 if is_whole else 0.5)

    return draw
