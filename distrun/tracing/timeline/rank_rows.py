"""The rows of one rank: slices made from its events."""

from __future__ import annotations

from collections.abc import Callable

from distrun.tracing import layout
from distrun.tracing.reader import Event
from distrun.tracing.timeline.slices import (
    COMMUNICATION,
    FIRST_OPERATION,
    INPUT,
    STEP,
    TRAINING,
    Slice,
)
from distrun.tracing.timeline.travel import Key, LastSubmitters, Travel

STATE_NAMES = {
    layout.OTHER: "own code",
    layout.INPUT: INPUT,
    layout.FORWARD: "forward",
    layout.BACKWARD: "backward",
    layout.OPTIMIZER: "optimizer",
    layout.SAVING: "checkpoint",
    layout.JOINING: "joining",
}
_TRIFLE = 20_000
"""Nanoseconds below which the script's own code, or a pause within a wait, is not shown."""


class RankRows:
    """Takes the events of a rank in order, and emits slices. Slices of a row overlap only by nesting."""

    def __init__(
        self, rank: int, submitters: LastSubmitters, emit: Callable[[Slice], None], operations: bool = False
    ) -> None:
        """Args: `emit` takes each slice when it is complete. `operations` is whether each has its own row, too."""
        self._emit = emit
        self._travel = Travel(rank, submitters)
        self._has_operations = operations
        self.operations: dict[str, int] = {}
        """The rows of operations, by name."""
        self.steps = 0
        """The number of completed steps."""
        self._step: Event | None = None  # a step whose end is not certain yet
        self._step_began = 0
        self._state = 0
        self._state_began = 0
        self._waits_for = ""
        self._waits_since = 0  # 0: it is not waiting
        self._counted: Event | None = None
        self._shown_until = 0  # the end of the last wait that is shown on the row of the main thread

    def take(self, event: Event, name: str, key: Key | None) -> None:
        """Take the next event, with the name of its operation and, for a completed one, its key."""
        step, self._step = self._step, None
        if step is None:
            pass
        elif event.kind == layout.DONE and event.begin < step.begin:
            self._take(event, name, key)  # it triggered the step, whose event was recorded a little earlier
            self._step_done(step)
            return
        else:
            self._step_done(step)
        if event.kind == layout.STEP:
            self._step = event
        else:
            self._take(event, name, key)

    def _take(self, event: Event, name: str, key: Key | None) -> None:
        kind = event.kind
        if kind in STATE_NAMES:
            self._enter(kind, event.begin)
        elif kind == layout.WAITING:
            self._waits_for, self._waits_since = name, event.begin
        elif kind == layout.WAITED:
            self._waited(event)
        elif kind == layout.DONE and key is not None:
            self._done(event, key)
        elif kind == layout.CYCLE:
            self._emit(Slice(COMMUNICATION, event.begin, event.begin, "cycle", (("decisions", event.fused),)))

    def finish(self, now: int) -> None:
        """End the current slices at `now`, because the rank is gone or the timeline ends."""
        if self._step is not None:
            self._step_done(self._step)
        if self._waits_since and self._state and self._waits_since >= self._state_began:
            self._emit(Slice(TRAINING, self._waits_since, now, f"waiting for {self._waits_for or 'an operation'}"))
        self._enter(0, now)

    def _enter(self, state: int, now: int) -> None:
        old, began = self._state, self._state_began
        now = max(now, began, self._shown_until)  # a corrected clock may go back by some microseconds
        if old and now > began and (old != layout.OTHER or now - began > _TRIFLE):
            self._emit(Slice(TRAINING, began, now, STATE_NAMES[old]))
        self._state, self._state_began, self._waits_since = state, now, 0
        if not self._step_began and state in (layout.INPUT, layout.FORWARD, layout.BACKWARD):
            self._step_began = now

    def _step_done(self, event: Event) -> None:
        if self._waits_since:
            self._counted = event  # triggered by an operation that the main thread sleeps for: it ends at the wake-up
            return
        state = self._state
        self._enter(layout.OTHER if state == layout.OPTIMIZER else state, event.begin)
        now = self._state_began
        self.steps = event.number
        if self._step_began:
            args = (("samples", event.value),) if event.value else ()
            self._emit(Slice(TRAINING, self._step_began, now, f"{STEP} {event.number}", args))
        self._step_began = now

    def _waited(self, event: Event) -> None:
        """Show that the main thread, or another one, was asleep from `begin` to `end`."""
        self._waits_since = 0
        if self._state and event.begin >= self._state_began:  # otherwise it was another thread, and this one was awake
            self._show_wait(max(event.begin, self._shown_until), event.end)
        if self._counted is not None:
            step, self._counted = self._counted, None
            self._step_done(step._replace(begin=event.end))

    def _show_wait(self, begin: int, end: int) -> None:
        """Show what operations did during a wait, and the wait itself where no operation did anything."""
        self._shown_until = max(end, begin)
        rest = f"waiting for {self._waits_for or 'an operation'}"
        for part in self._travel.within(begin, end):
            if part.begin - begin > _TRIFLE:
                self._emit(Slice(TRAINING, begin, part.begin, rest))
            self._emit(part._replace(row=TRAINING))
            begin = part.end
        if end - begin > _TRIFLE * 5:
            self._emit(Slice(TRAINING, begin, end, rest))

    def _done(self, event: Event, key: Key) -> None:
        for part in self._travel.of(event, key):
            self._emit(part)
        if not self._has_operations:
            return
        row = self.operations.setdefault(key.name, FIRST_OPERATION + len(self.operations))
        for part in self._travel.of_operation(event, key):
            self._emit(part._replace(row=row))
