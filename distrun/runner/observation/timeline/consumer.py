"""The consumer that writes a timeline of all ranks, some seconds behind them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from distrun.errors import UsageError
from distrun.runner.observation.consumer import Consumer, JobEnd, Source
from distrun.runner.observation.prediction.reading import KEY
from distrun.runner.observation.profiling.profiler import Profiler
from distrun.tracing.reader import Event
from distrun.tracing.timeline.epoch import monotonic_epoch
from distrun.tracing.timeline.options import TimelineOptions
from distrun.tracing.timeline.timeline import Timeline

_SECOND = 1_000_000_000
_ADVANCE_EVERY = _SECOND // 2
_LONGEST_GAP = 5 * _SECOND
"""Nanoseconds to wait for a host's report: the timeline is written up to the slowest host, but not further behind than
this.
"""
_MARGIN = _SECOND // 10


class TimelineConsumer(Consumer):
    """Writes the events of all hosts in order of time, and waits at most `_LONGEST_GAP` for a host without reports."""

    title = "the timeline"

    def __init__(self, options: TimelineOptions, profiler: Profiler) -> None:
        """Begin the file.

        Args:
            options: the file, and what it shows.
            profiler: makes the profile of the job, which is written at the end of the file.

        Raises:
            UsageError: the file cannot be written.
        """
        now = time.monotonic_ns()
        try:
            self._timeline = Timeline(options, monotonic_epoch(), now)
        except OSError as error:
            raise UsageError(
                f"--timeline {options.file!r} cannot be written: {error.strerror}: give another file"
            ) from None
        self._profiler = profiler
        self._told_until: dict[str, int] = {}
        self._clocks: dict[str, dict[str, int]] = {}
        self._advance_at = now + _ADVANCE_EVERY

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        self._told_until.setdefault(source.host, 0)
        self._profiler.events(source, events, names)
        self._timeline.add(source.process, source.rank, source.host, events, names)

    def sample(self, host: str, sample: Mapping[str, Any]) -> None:
        self._told_until[host] = sample["time"]  # an agent sends events before its sample
        offset, error = sample["clock"]["offset"], sample["clock"]["error"]
        if offset or error:
            self._clocks[host] = {"offsetNanoseconds": offset, "errorNanoseconds": error}

    def tick(self, now: int) -> None:
        if now < self._advance_at:
            return
        self._advance_at = now + _ADVANCE_EVERY
        told = min(self._told_until.values(), default=now)
        self._timeline.advance(max(min(told, now) - _MARGIN, now - _LONGEST_GAP))

    def close(self, ending: JobEnd) -> None:
        end: dict[str, object] = {"clocks": self._clocks} if self._clocks else {}
        self._timeline.close(time.monotonic_ns(), {**end, KEY: self._profiler.profiled().to_json()})
