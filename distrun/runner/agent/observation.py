"""Observing the ranks of this host for the launcher: their events, their usage of CPUs, memory and GPUs, and their
activities when the first one failed.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from distrun.runner.agent.launcher_connection import LauncherConnection
from distrun.runner.agent.rank_process import RankProcess
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.tracing import stacks
from distrun.tracing.activity import activity_in

_LONGEST_BACKLOG = 64 << 20  # bytes that the launcher has not read, beyond which reports are skipped
_RECENT = 2000  # past events that a new observer gets
_ANSWER_WITHIN, _LOOK_EVERY = 2.0, 0.02  # seconds for a rank to write its stacks, and between two checks for them
_SILENT = (
    "has not answered within 2 s: it has not called distrun.init() yet, trains alone, or native code of it "
    "keeps the interpreter; py-spy dump --pid shows it all the same"
)
_NAMES = struct.Struct("<I")


class Observation:
    """Sends the launcher events and usage at regular intervals, after it has asked for them."""

    def __init__(self, launcher: LauncherConnection, ranks: Callable[[], Iterable[RankProcess]]) -> None:
        self._launcher = launcher
        self._ranks = ranks
        self._have_gradients: set[int] = set()
        self._interval = 0.0
        self._due = 0.0
        self._usage: Any = None
        # With the number of answers so far, and the deadline.
        self._asked: dict[int, tuple[RankProcess, int, float]] = {}

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `look` has something to do. None = never."""
        if self._asked:
            return _LOOK_EVERY
        return max(0.0, self._due - time.monotonic()) if self._interval else None

    def ask(self, payload: bytes) -> None:
        """Follow an OBSERVE frame: begin, change or end the reports."""
        was_asked, self._interval = self._interval, float(json.loads(payload)["interval"])
        self._due = time.monotonic() + self._interval
        if self._interval and not was_asked:
            for rank in self._ranks():
                if rank.events is not None:
                    rank.events.restart(_RECENT)
        if self._interval and self._usage is None:
            from distrun.runner.agent.usage import Usage

            self._usage = Usage()

    def answer_clock(self, payload: bytes) -> None:
        """Answer a CLOCK frame with the time of this host beside the launcher's."""
        self._launcher.send(Frame(FrameKind.CLOCK, payload=b"%s %d" % (payload, time.monotonic_ns())))

    def look(self) -> None:
        """Report new events and the usage, if that is due."""
        self._tell_gradients()
        if self._asked:
            self._tell_stacks()
        if not self._interval or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._interval
        if self._launcher.backlog > _LONGEST_BACKLOG:
            return
        ranks, now = list(self._ranks()), time.monotonic_ns()
        for rank in ranks:
            self.tell_events(rank)
        sample = self._usage.sample({rank.number: rank.pid for rank in ranks if rank.alive}) | {"time": now}
        self._launcher.send(Frame(FrameKind.SAMPLE, payload=json.dumps(sample).encode("ascii")))

    def ask_stacks(self, number: int) -> None:
        """Ask a rank for the stacks of its threads. The answer is sent to the launcher when it comes."""
        rank = next((rank for rank in self._ranks() if rank.number == number), None)
        if rank is None or not rank.alive or rank.events is None:
            why = "is gone" if rank is None or not rank.alive else "cannot be asked: its events are not recorded"
            self._launcher.send(Frame(FrameKind.STACK, number, why.encode()))
            return
        self._asked[number] = rank, stacks.answers(rank.events.memory), time.monotonic() + _ANSWER_WITHIN
        rank.ask_stacks()

    def _tell_stacks(self) -> None:
        for number, (rank, before, until) in list(self._asked.items()):
            assert rank.events is not None
            if stacks.answers(rank.events.memory) != before:
                text = f"has these threads:\n{stacks.last_answer(rank.events.memory)}"
            elif time.monotonic() >= until or not rank.alive:
                text = _SILENT
            else:
                continue
            del self._asked[number]
            self._launcher.send(Frame(FrameKind.STACK, number, text.encode()))

    def _tell_gradients(self) -> None:
        """Report the digest of each rank's first gradients, once. What wakes the agent is output or the rank's end."""
        for rank in self._ranks():
            if rank.number not in self._have_gradients and rank.events is not None and (told := rank.events.gradients):
                self._have_gradients.add(rank.number)
                self._launcher.send(Frame.number(FrameKind.GRADIENTS, told, rank.number))

    def tell_events(self, rank: RankProcess) -> None:
        """Report the new events of one rank, which may be gone, if the launcher has asked for reports."""
        if not self._interval or rank.events is None:
            return
        names, records = rank.events.new_names(), rank.events.read()
        if records:
            payload = zlib.compress(_NAMES.pack(len(names)) + names + records, 1)
            self._launcher.send(Frame(FrameKind.EVENTS, rank.number, payload))


class Activities:
    """Reports the ranks' activities once. What they do later is a consequence of the failure, or of the signal that
    ends them.
    """

    def __init__(self, launcher: LauncherConnection) -> None:
        self._launcher = launcher
        self._has_told = False

    def tell(self, ranks: Iterable[RankProcess]) -> None:
        """Report the activity of each rank that has recorded one, at the first call only."""
        if self._has_told:
            return
        self._has_told = True
        now = time.monotonic_ns()
        for rank in ranks:
            if rank.events is not None and (told := activity_in(rank.events).describe(now)):
                self._launcher.send(Frame(FrameKind.ACTIVITY, rank.number, told.to_json()))


def unpack_events(payload: bytes) -> tuple[bytes, bytes]:
    """Return the new names and the events in an EVENTS frame, for `tracing.reader`."""
    raw = zlib.decompress(payload)
    (length,) = _NAMES.unpack_from(raw)
    return raw[_NAMES.size : _NAMES.size + length], raw[_NAMES.size + length :]
