"""Waiting for input: a warning, with the numbers, where training waits for its data instead of computing.

Only time while the training loop is blocked counts: it has asked for the next batch and has not got it. Loading in
parallel with the computation (prefetching, worker processes) does not block it. Work that a loop hands to a device
without waiting for it does not count as work. A loop that reads its loss waits for it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import GeneratorType
from typing import Any, TypeVar

from distrun.contract import settings
from distrun.contract.settings import INPUT_WAIT
from distrun.runtime.world import world
from distrun.tracing import layout, recording

log = logging.getLogger("distrun")

FIRST_LOOK = 20
"""The steps of an epoch before the first check. The number doubles for each further check. A check covers the steps
since the one before, so a unique event such as the compilation of a function does not distort the result for long."""

TRIFLE = 1e-4
"""Seconds per step that are never reported, whatever their share."""

Item = TypeVar("Item")


class Judge:
    """Decides whether to warn about an input, at most once per epoch."""

    def __init__(self, rank: int, limit: float) -> None:
        self._rank = rank
        self._limit = limit
        self._told = False

    def look(self, steps: int, waited: float, worked: float) -> str | None:
        """Return the warning, if there is one, after `steps` steps of an epoch. `waited` and `worked` are seconds since
        the last check."""
        if steps == FIRST_LOOK:
            self._told = False
        else:
            steps //= 2
        total = waited + worked
        if self._told or waited <= self._limit * total or waited <= TRIFLE * steps:
            return None
        self._told = True
        return (
            f"rank {self._rank} waited {waited / total:.0%} of its time for input ({1e3 * waited / steps:.1f} of "
            f"{1e3 * total / steps:.1f} ms per step over {steps} steps; limit {self._limit:.0%}): load batches ahead, "
            f"as with prefetch() in tf.data and num_workers in a DataLoader, or set {INPUT_WAIT} to another share"
        )


def is_due(steps: int) -> bool:
    """Whether a check is due after `steps` steps of an epoch."""
    times, rest = divmod(steps, FIRST_LOOK)
    return rest == 0 and times > 0 and times & (times - 1) == 0


class Stopwatch:
    """Measures an epoch by a clock that is passed in.

    The first step does not count, since pipelines start and functions are compiled in it.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._steps = -1
        self._waited = self._worked = 0.0
        self._asked = self._got = 0.0

    def asks(self, now: float) -> str | None:
        """Note that the training loop asks for the next batch at `now`. Returns the warning, if there is one."""
        self._asked = now
        if self._steps <= 0:
            return None
        self._worked += now - self._got
        if not is_due(self._steps):
            return None
        waited, worked = self._waited, self._worked
        self._waited = self._worked = 0.0
        return self._judge.look(self._steps, waited, worked)

    def gets(self, now: float) -> None:
        """Note that the training loop gets the batch at `now`."""
        self._got = now
        self._steps += 1
        if self._steps > 0:
            self._waited += now - self._asked


class Watch:
    """Measures one epoch with a real clock, and logs the warnings."""

    def __init__(self, judge: Judge, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stopwatch = Stopwatch(judge)
        self._clock = clock

    def fetch(self, function: Callable[[], Item]) -> Item:
        """Return what `function` returns, while the training loop waits for it."""
        tell(self._stopwatch.asks(self._clock()))
        item = recorded(function)
        self._stopwatch.gets(self._clock())
        return item


def recorded(function: Callable[[], Item]) -> Item:
    """Return what `function` returns, and record that the training loop waits for it."""
    recording.enter(layout.INPUT)
    try:
        item = function()
    except StopIteration:
        recording.enter(layout.OTHER)
        raise
    recording.enter(layout.FORWARD)
    return item


def measured(source: Iterable[Item], judge: Judge | None) -> Iterator[Item]:
    """Iterate over `source`, which is one epoch, and measure it if there is a judge."""
    iterator = iter(source)
    fetch: Callable[[Callable[[], Item]], Item] = recorded if judge is None else Watch(judge).fetch
    while True:
        try:
            item = fetch(iterator.__next__)
        except StopIteration:
            return
        yield item


def new_judge() -> Judge | None:
    """Return a judge for one input of this rank, or None where DISTRUN_INPUT_WAIT, which must be a share, is 0."""
    limit = settings.current().input_wait
    return Judge(world.rank(), limit) if limit else None


def tell(message: str | None) -> None:
    """Log a warning if there is one."""
    if message is not None:
        log.warning("%s", message)


class Watched(Iterable[Item]):
    """An iterable that measures each iteration over it as one epoch."""

    def __init__(self, source: Iterable[Item], judge: Judge) -> None:
        self._source = source
        self._judge = judge

    def __iter__(self) -> Iterator[Item]:
        return measured(self._source, self._judge)

    def __len__(self) -> int:
        return len(self._source)  # type: ignore[arg-type]  # without a length, a TypeError is right


def watch(data: Any) -> Any:
    """Return `data` in a form that logs a warning when this rank waits too long for its batches.

    Too long is more than a fifth of the rank's time, or the share in DISTRUN_INPUT_WAIT (0: never warn). Watch what the
    training loop itself iterates over, after every `map` and `prefetch`. There is at most one warning per epoch, and
    none in epochs of fewer than 20 steps.

    Args:
        data: any iterable of batches.

    Returns:
        A tf.data.Dataset for a tf.data.Dataset (measured inside `fit`, too), a generator for a generator, and an
        iterable for anything else.

    Raises:
        UsageError: DISTRUN_INPUT_WAIT is not a share.
        NotInitializedError: before `init()`.
    """
    judge = new_judge()
    if judge is None:
        return data
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(data, tensorflow.data.Dataset):
        from distrun.data import tf_data

        return tf_data.watched(data, judge)
    if isinstance(data, GeneratorType):
        return measured(data, judge)
    return Watched(data, judge)
