"""The operations of one step, merged from all ranks' records, as batches of gradients."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from distrun.contract.settings import WIRE_SHARES
from distrun.runner.observation.prediction.profile import Gradients
from distrun.runner.observation.profiling.steps import ProfiledStep, ReductionTimes

_SECOND = 1e9

Shape = tuple[tuple[str, int], ...]
"""The names and bytes of operations, in the order of execution."""


class _Shared:
    """One operation, merged from all ranks."""

    def __init__(self, one: ReductionTimes) -> None:
        self.name, self.size = one.name, one.size
        self.ranks = 0
        self.ready = 0.0  # the sum over the ranks of the seconds since their backward pass began
        self.submitted, self.begin, self.end = 0, one.begin, 0

    def add(self, one: ReductionTimes, backward_began: int) -> None:
        self.ranks += 1
        self.ready += (one.ready - backward_began) / _SECOND
        self.submitted = max(self.submitted, one.submitted)
        self.begin = min(self.begin, one.begin)
        self.end = max(self.end, one.end)


class Reductions:
    """The operations of a step. Ranks are added one by one."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], _Shared] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, step: ProfiledStep) -> None:
        """Add the records of a rank."""
        for one in step.reductions:
            shared = self._found.get((one.name, one.number))
            if shared is None:
                shared = self._found[one.name, one.number] = _Shared(one)
            shared.add(one, step.backward_began)

    def shape(self, ranks: int) -> Shape | None:
        """Return the shape of the step, or None if it has no operations or records of some ranks are missing."""
        if not self._found or any(one.ranks != ranks for one in self._found.values()):
            return None
        return tuple((one.name, one.size) for one in self._ordered())

    def _ordered(self) -> list[_Shared]:
        return sorted(self._found.values(), key=lambda one: one.begin)

    def readiness(self) -> list[float]:
        """Return for each operation the seconds from the start of the backward pass until ready, averaged over the
        ranks.
        """
        return [one.ready / one.ranks for one in self._ordered()]

    def seconds(self) -> list[float]:
        """Return for each operation the seconds that it took without waiting for anything else.

        The time starts when all ranks have submitted it, the previous operation is done everywhere, and some rank has
        begun it. Ranks without a spare core begin late, which is not a property of their network.
        """
        found, before = [], 0
        for one in self._ordered():
            found.append(max(0, one.end - max(one.submitted, one.begin, before)) / _SECOND)
            before = max(before, one.end)
        return found


def batches(steps: Sequence[Reductions], shape: Shape, wire: str) -> tuple[Gradients, ...]:
    """Return the batches of gradients of steps that all have the operations `shape`, with medians over the steps."""
    ready, seconds = _medians(step.readiness() for step in steps), _medians(step.seconds() for step in steps)
    return tuple(
        Gradients(size, max(0.0, when), size * WIRE_SHARES.get(wire, 1.0), taken)
        for (_, size), when, taken in zip(shape, ready, seconds, strict=True)
    )


def _medians(rows: Iterable[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]
