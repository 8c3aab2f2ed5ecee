"""The consumer behind all views of a job: one model, and a snapshot of it for each viewer twice per second."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from distrun.runner.observation.consumer import Consumer, JobEnd, Source
from distrun.runner.observation.live.snapshot import Snapshot, snapshot
from distrun.runner.observation.model.model import Model
from distrun.runner.observation.model.output import Log
from distrun.tracing.reader import Event

if TYPE_CHECKING:
    from distrun.runner.planning.plan import LaunchPlan

EVERY = 0.5
"""Seconds between two snapshots."""


class Viewer(Protocol):
    """Shows a job. Called by the observation's thread, and must not block."""

    def see(self, snapshot: Snapshot) -> None:
        """Take the current state of the job."""

    def end(self, snapshot: Snapshot) -> None:
        """Take the last state: the job is over."""


class Hub(Consumer):
    """The consumer that keeps the model and feeds the viewers."""

    title = "the live view"

    def __init__(self, plan: LaunchPlan, since: int | None = None) -> None:
        """Args: `since` is the time to begin at, if the job has been running for a while."""
        self.job, self.command, self.size = plan.job, shlex.join(plan.command), plan.size
        self._model = Model(since=since)
        self._has_fixed_ranks = not plan.by_mpirun and not plan.is_elastic
        self._began = time.monotonic()
        self._due = 0.0
        self._viewers: list[Viewer] = []
        self._logs: dict[int, Log] = {}
        self.latest: Snapshot | None = None
        self.ask_stack: Callable[[int, Callable[[str], None]], bool] | None = None
        """Asks a rank for its stack. Returns whether the rank exists."""

    def add(self, viewer: Viewer) -> None:
        """Add a viewer (any thread)."""
        self._viewers = [*self._viewers, viewer]

    def remove(self, viewer: Viewer) -> bool:
        """Remove a viewer (any thread). Returns whether others are left."""
        self._viewers = [one for one in self._viewers if one is not viewer]
        return bool(self._viewers)

    def log(self, rank: int) -> str:
        """Return the last lines of a rank's output (any thread)."""
        log = self._logs.get(rank)
        lines = [] if log is None else log.lines()
        if not lines:
            return f"rank {rank} has written nothing since this view began, or there is no such rank"
        return "\n".join([f"the last lines of rank {rank}:", *(f"  {line}" for line in lines)])

    def stack(self, rank: int, tell: Callable[[str], None]) -> None:
        """Ask a rank for the stacks of its threads (any thread). `tell` gets the answer, or the reason for none."""
        if self.ask_stack is None or not self.ask_stack(rank, tell):
            tell(f"rank {rank} has told nothing of itself yet, or there is no such rank")

    # As a consumer ----------------------------------------------------------------------------------------------------

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        if source.rank >= 0:
            self._model.events(source, events, names)

    def sample(self, host: str, sample: Mapping[str, Any]) -> None:
        for process in map(int, sample["ranks"] if self._has_fixed_ranks else ()):
            known = self._model.ranks.get(process)
            if known is None or not known.host:  # it is shown before its first event
                self._model.rank(process, process, host)
        self._model.sample(host, sample)

    def output(self, rank: int, data: bytes) -> None:
        if rank < 0:
            return
        self._model.output(rank, data)
        self._logs.setdefault(rank, Log()).feed(data)

    def tick(self, now: int) -> None:
        """Send the viewers a snapshot, if it is due."""
        self._model.tick(now)
        if now / 1e9 < self._due:
            return
        self._due = now / 1e9 + EVERY
        self.latest = self._snapshot()
        for viewer in self._viewers:
            viewer.see(self.latest)

    def close(self, ending: JobEnd) -> None:
        """Send the viewers the last snapshot: the job is over."""
        self._model.close(ending)
        last = self._snapshot(ending.status)
        for viewer in self._viewers:
            viewer.end(last)

    def _snapshot(self, status: int | None = None) -> Snapshot:
        seconds = time.monotonic() - self._began
        size = max(self.size, len(self._model.ranks))
        return snapshot(self._model, self.job, self.command, size, seconds, status)
