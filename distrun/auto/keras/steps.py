"""The training step that is running or being traced: its rows, its losses, and the optimizers that have scaled these.

A loss function returns a mean over the rows that it is given, so the loss of a rank is multiplied by its share: rows of
the part times ranks over rows of the batch. The average of the gradients is then the gradient of the whole batch,
however the rows are divided. Other losses are first scaled so that they behave like such a mean: a sum is multiplied by
total / rows.

A part is consecutive rows of the script's own batch. If there are fewer rows than ranks, all ranks compute all rows,
and only rank 0's count in metrics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

_steps: list[PartialStep] = []


class Part(NamedTuple):
    """A rank's part of a batch: three integers, or with TensorFlow three scalar tensors."""

    start: Any
    stop: Any
    total: Any
    """The number of rows of the whole batch."""

    @property
    def rows(self) -> Any:
        """The number of rows of the part."""
        return self.stop - self.start


def part_of(total: Any, rank: int, size: int) -> Part:
    """Return a rank's part of a batch of `total` rows, given the number of ranks (`size`)."""
    if total < size:
        return Part(0, total, total)
    return Part(total * rank // size, total * (rank + 1) // size, total)


def counts(part: Part, rank: int, size: int) -> Any:
    """Whether this rank's part counts in the metrics."""
    return rank == 0 or part.total >= size


class PartialStep:
    """A training step on a part of a batch."""

    def __init__(self, part: Part, size: int, is_trial: bool = False) -> None:
        self.part = part
        self.size = size
        self.gradients: list[list[Any]] | None = [] if is_trial else None
        """In a trial, the gradients in each call of an optimizer, which updates nothing then. None in a real step."""
        self.is_own = False
        """Whether the script itself has computed the loss, or a term of it."""
        self.scaled: set[int] = set()
        """The optimizers, by identity, whose loss has been multiplied by the share."""
        self._calls: dict[str, int] = {}

    @property
    def is_trial(self) -> bool:
        """Whether the step is only tried, on rows of this rank and without collectives."""
        return self.gradients is not None

    def share(self, like: Any) -> Any:
        """Return the factor for the loss, in the dtype of the tensor `like`."""
        return _quotient(self.part.rows * self._ranks(), self.part.total, like)

    def weight(self) -> Any:
        """Return the weight of this part's number in a mean over batches. The ranks' weights add up to `size`."""
        return self.part.rows * self.size / self.part.total

    def growth(self, like: Any) -> Any:
        """Return the batch's number of rows, divided by the part's."""
        return _quotient(self.part.total, self.part.rows, like)

    def copies(self, like: Any) -> Any:
        """Return the number of ranks that have the same rows."""
        return _quotient(self.size, self._ranks(), like)

    def _ranks(self) -> Any:
        """Return the number of ranks that the batch is divided among."""
        if isinstance(self.part.total, int):
            return self.size if self.part.total >= self.size else 1
        import tensorflow as tf

        return tf.where(self.part.total >= self.size, self.size, 1)

    def name(self, what: str) -> str:
        """Return a name for an operation of the step. It is the same in each trace of the same program."""
        number = self._calls[what] = self._calls.get(what, -1) + 1
        return f"auto.keras.{what}.{number}"


def _quotient(above: Any, below: Any, like: Any) -> Any:
    if isinstance(above, int) and isinstance(below, int):
        return above / below
    import tensorflow as tf

    return tf.cast(above / below, like.dtype)


def current() -> PartialStep | None:
    """Return the step that is running or being traced in this process, or None if there is none."""
    return _steps[-1] if _steps else None


@contextlib.contextmanager
def step(part: Part, size: int, is_trial: bool = False) -> Iterator[PartialStep]:
    """A context for running, tracing or trying a step on a part of a batch."""
    _steps.append(PartialStep(part, size, is_trial))
    try:
        yield _steps[-1]
    finally:
        _steps.pop()


def are_of_keras(*made: Any) -> bool:
    """Whether all classes and functions are Keras's own, whose behaviour is known. None is ignored."""
    # The module of a function in C, such as `torch.relu`, may be None.
    return all(str(getattr(each, "__module__", None)).startswith("keras.") for each in made if each is not None)
