"""The activity of a rank: what it is doing, or did last, in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distrun.tracing import layout
from distrun.tracing.reader import Event, RingReader, events

LOOKED_AT = 2000
"""The number of events that are read: enough to find what a rank is doing, in all but the strangest loops."""

_WORDS = {
    layout.INPUT: "waiting for its next batch",
    layout.FORWARD: "in its forward pass",
    layout.BACKWARD: "in its backward pass",
    layout.OPTIMIZER: "updating its weights",
    layout.SAVING: "writing a checkpoint",
    layout.JOINING: "in init(), waiting for the other ranks",
    layout.OTHER: "busy with the script's own code",
}


@dataclass(frozen=True)
class Activity:
    """The activity of a rank at a point in time."""

    state: int
    """The last of `layout.STATES`. 0: none is known."""
    since: int
    """When it began, in nanoseconds of the host's monotonic clock."""
    waits_for: str
    """The operation that one of its threads sleeps for. Empty: none."""
    step: int
    """The number of steps that it has done."""

    def describe(self, now: int) -> ActivityDescription | None:
        """Return it in words, at the time `now` of the same clock. None: nothing is known."""
        if self.waits_for:
            what = f"waiting for {self.waits_for}"
        elif self.state:
            what = _WORDS[self.state]
        else:
            return None
        return ActivityDescription(what, max(0.0, (now - self.since) / 1e9), self.step)


@dataclass(frozen=True)
class ActivityDescription:
    """The activity of a rank at a point in time, in words."""

    what: str
    """A participle: `waiting for its next batch`."""
    seconds: float
    """Its duration."""
    step: int
    """The number of steps that the rank has done."""

    @property
    def sentence(self) -> str:
        """The activity as a predicate: `had been waiting for its next batch for 41.0 s (317 steps done)`."""
        length = f"{self.seconds:.1f} s" if self.seconds < 100 else f"{self.seconds / 60:.1f} min"
        steps = f" ({self.step} steps done)" if self.step > 1 else " (1 step done)" if self.step else ""
        return f"had been {self.what} for {length}{steps}"

    def to_json(self) -> bytes:
        """Return the payload of an ACTIVITY frame."""
        return json.dumps(vars(self)).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> ActivityDescription:
        """Return what `to_json` wrote."""
        return cls(**json.loads(payload))


def activity(recent: Iterable[Event], names: Sequence[str]) -> Activity:
    """Return the activity according to the last events. `names` are from the same ring."""
    state, since, waits_for, waiting_since, step = 0, 0, "", 0, 0
    for event in recent:
        if event.kind in layout.STATES:
            state, since, waits_for = event.kind, event.begin, ""
        elif event.kind == layout.WAITING:
            name = names[event.name] if event.name < len(names) else ""
            waits_for, waiting_since = name or "an operation", event.begin
        elif event.kind == layout.WAITED:
            waits_for = ""
        elif event.kind == layout.STEP:
            step = event.number
        elif event.kind == layout.DONE:
            state = state or layout.OTHER
            if state == layout.OTHER:
                since = max(since, event.end)
    return Activity(state, waiting_since if waits_for else since, waits_for, step)


def activity_in(reader: RingReader) -> Activity:
    """Return the activity of the rank that writes a ring."""
    return activity(events(reader.last(LOOKED_AT)), reader.names())
