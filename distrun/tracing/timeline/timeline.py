"""A timeline of several ranks: it takes events and writes a file, one second after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distrun.tracing import layout
from distrun.tracing.reader import Event
from distrun.tracing.timeline.epoch import base_time
from distrun.tracing.timeline.options import TimelineOptions
from distrun.tracing.timeline.rank_rows import RankRows
from distrun.tracing.timeline.seconds import Seconds
from distrun.tracing.timeline.slices import Slice
from distrun.tracing.timeline.travel import Key, LastSubmitters

_FORGET_AFTER = 20 * 1_000_000_000
"""The least time, in nanoseconds, for which the last submitter of an operation is remembered."""


class _Process:
    """The rows of one process, and its events that have not been turned into slices."""

    def __init__(self, rank: int, rows: RankRows) -> None:
        self.rank = rank
        self.rows = rows
        self.generation = 0
        self.waiting: list[tuple[Event, str, Key | None]] = []
        self.is_over = False


class Timeline:
    """Takes events of all ranks, in times of one clock, and writes what is over by a given time."""

    def __init__(self, options: TimelineOptions, epoch: int, now: int) -> None:
        """Begin the file.

        Args:
            options: what to show, and the file.
            epoch: the time since 1970, in nanoseconds, when the clock of all times was 0.
            now: the time by that clock.

        Raises:
            OSError: the file cannot be written.
        """
        self._options = options
        self._submitters = LastSubmitters()
        self._processes: dict[int, _Process] = {}
        self._forget_at = now + _FORGET_AFTER
        self._seconds = Seconds(options, epoch - base_time(epoch + now), base_time(epoch + now), now)

    def add(self, process: int, rank: int, host: str, events: Iterable[Event], names: Sequence[str]) -> None:
        """Take new events of a process, in the order of recording. It keeps its number for life, and not its rank."""
        known = self._processes.get(process)
        if known is None or known.rank != rank:
            known = self._new(process, rank, host)
        for event in events:
            if event.kind == layout.GENERATION:
                known.generation = event.number
            name = names[event.name] if event.name < len(names) else ""
            key = None
            if event.kind == layout.DONE:
                key = Key(known.generation, event.process_set, name, event.number)
                if event.submitted:
                    self._submitters.note(key, rank, event.submitted)
            known.waiting.append((event, name, key))

    def advance(self, until: int) -> None:
        """Write everything up to `until`. All ranks have delivered their events up to then."""
        for process in self._processes.values():
            waiting = process.waiting
            ready = next((at for at, item in enumerate(waiting) if recorded(item[0]) > until), len(waiting))
            for event, name, key in waiting[:ready]:
                process.rows.take(event, name, key)
            del waiting[:ready]
        self._seconds.advance(until)
        if until > self._forget_at:
            self._submitters.forget_old()
            self._forget_at = until + _FORGET_AFTER

    def over(self, process: int, now: int) -> None:
        """Note that a process is gone."""
        known = self._processes.get(process)
        if known is None or known.is_over:
            return
        known.is_over = True
        for event, name, key in known.waiting:
            known.rows.take(event, name, key)
        known.waiting = []
        known.rows.finish(now)

    def close(self, now: int, end: dict[str, object] | None = None) -> None:
        """Write the remaining events, and `end` as further fields of the file."""
        for process in list(self._processes):
            self.over(process, now)
        self._seconds.close(now, end or {})

    def _new(self, process: int, rank: int, host: str) -> _Process:
        old = self._processes.get(process)
        emit = self._seconds.rank(rank, host)
        steps = self._options.steps

        def show(piece: Slice) -> None:
            # A step is shown as a whole, and its own slice comes after the step was counted.
            if steps is None or rows.steps + (not piece.is_step) in steps:
                emit(piece, rows.operations)

        rows = RankRows(rank, self._submitters, show, self._options.operations)
        new = self._processes[process] = _Process(rank, rows)
        if old is not None:
            new.generation, new.waiting = old.generation, old.waiting
            rows.steps = old.rows.steps
        return new


def recorded(event: Event) -> int:
    """Return when an event was recorded."""
    return max(event.begin, event.end)
