"""Grids and seeds: all combinations of the values of the parameters, in a fixed order."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from distrun.errors import UsageError
from distrun.host.ranks import count
from distrun.tools.sweep.policy.trials import Trial
from distrun.tools.sweep.space.ranges import Range, Value, Values

_MOST = 1 << 20  # trials of a grid


class Listed:
    """A source with a fixed list of trials."""

    needs_values = False

    def __init__(self, points: Iterable[Values], finished: Collection[Values] = ()) -> None:
        """Args: the values of all trials, in order, and those of an earlier run's trials that need not run again."""
        left = list(points)
        self.total: int | None = len(left)
        done = Counter(_key(values) for values in finished)
        self._left: deque[Values] = deque()
        for values in left:
            if done[_key(values)]:
                done[_key(values)] -= 1
            else:
                self._left.append(values)

    def ask(self, number: int) -> Values | None:
        """Return the values of the next trial."""
        return self._left.popleft() if self._left else None

    def tell(self, trial: Trial) -> None:
        """Note nothing: the order is fixed."""


def grid(parameters: Mapping[str, Range]) -> list[Values]:
    """Return all combinations of values. The last parameter varies fastest.

    Raises:
        UsageError: a range has infinitely many values, or there are too many combinations.
    """
    columns = []
    for name, values in parameters.items():
        listed = values.listed()
        if listed is None:
            raise UsageError(
                f"--grid cannot list the values of {name}={values}: give choices, as in {name}=0.1|0.01, or a step, as "
                f"in {name}=0..1/0.25"
            )
        columns.append(listed)
    total = math.prod(map(_length, columns))
    if total > _MOST:
        raise UsageError(
            f"--grid has {total} trials, {_MOST} are allowed: give fewer values, or wider steps, as in a=0..1000/100"
        )
    return [dict(zip(parameters, point, strict=True)) for point in itertools.product(*columns)]


def size_in_words(parameters: Mapping[str, Range]) -> str:
    """Return the size of a grid as text: `12 trials: 3 of lr x 4 of width`."""
    counts = {name: len(values.listed() or ()) for name, values in parameters.items()}
    each = " x ".join(f"{number} of {name}" for name, number in counts.items())
    total = math.prod(counts.values())
    return f"{count(total, 'trial')}" + (f": {each}" if len(counts) > 1 else "")


def _length(values: Sequence[Value]) -> int:
    """Return the number of values. `len` fails for a range of 2 ** 63 or more."""
    return (values.stop - values.start - 1) // values.step + 1 if isinstance(values, range) else len(values)


def _key(values: Values) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in values.items()))
