"""Relaying the output of ranks to the launcher, and the launcher's standard input to a rank."""

from __future__ import annotations

import os
from functools import partial

from distrun.runner.agent.launcher_connection import LauncherConnection
from distrun.runner.agent.rank_process import RankProcess, waiting_bytes
from distrun.runner.protocol.frames import CHUNK, WINDOW, Frame, FrameKind
from distrun.runner.system.loop import WRITE, Loop


class Relay:
    """Relays bytes in both directions, with flow control: ranks are not read faster than the launcher prints."""

    def __init__(self, loop: Loop, launcher: LauncherConnection) -> None:
        self._loop = loop
        self._launcher = launcher
        self._ranks: dict[int, RankProcess] = {}
        self._paused = False
        self._stdin_pending: dict[int, bytearray] = {}
        self._stdin_ended: set[int] = set()

    def add(self, rank: RankProcess) -> None:
        """Begin to relay the output of a rank."""
        self._ranks[rank.number] = rank
        self._watch(rank)

    def drain(self, rank: RankProcess) -> None:
        """Relay the bytes that a dead rank's pipes hold now, and no more: a process that it left behind may write for
        ever.
        """
        for descriptor in list(rank.sources):
            waiting = waiting_bytes(descriptor)
            while waiting > 0 and (count := self._pass_on(rank, descriptor, min(waiting, CHUNK))):
                waiting -= count

    def remove(self, rank: RankProcess) -> None:
        """Relay the last output of a dead rank's descendants, and close its pipes."""
        self.drain(rank)
        for descriptor in (*rank.sources, *(() if rank.stdin is None else (rank.stdin,))):
            self._loop.unwatch(descriptor)
        rank.close()
        del self._ranks[rank.number]

    def update_flow(self) -> None:
        """Stop reading from ranks when the launcher's backlog reaches `WINDOW`, and resume at half of that."""
        backlog = self._launcher.backlog
        if backlog >= WINDOW and not self._paused:
            self._paused = True
            for rank in self._ranks.values():
                for descriptor in rank.sources:
                    self._loop.unwatch(descriptor)
        elif backlog <= WINDOW // 2 and self._paused:
            self._paused = False
            for rank in self._ranks.values():
                self._watch(rank)

    def take_stdin(self, number: int, data: bytes) -> None:
        """Write data to a rank's stdin as fast as the rank reads it. Empty data means end of file."""
        rank = self._ranks.get(number)
        if rank is None or rank.stdin is None:
            self._launcher.send(Frame.number(FrameKind.ACK, len(data), number))
            return
        if not data:
            self._stdin_ended.add(number)
        self._stdin_pending.setdefault(number, bytearray()).extend(data)
        self._loop.watch(rank.stdin, partial(self._write_stdin, rank), WRITE)

    def _watch(self, rank: RankProcess) -> None:
        for descriptor in () if self._paused else rank.sources:
            self._loop.watch(descriptor, partial(self._pass_on, rank, descriptor))

    def _pass_on(self, rank: RankProcess, descriptor: int, limit: int = CHUNK) -> int:
        """Send the bytes that can be read now. Returns their number, which is 0 if the pipe is closed or empty."""
        try:
            data = os.read(descriptor, limit)
        except BlockingIOError:
            return 0
        if data:
            kind = rank.sources[descriptor]
            self._launcher.send(Frame(kind, rank.number, data), is_output=kind is not FrameKind.RESULT)
        else:
            del rank.sources[descriptor]
            self._loop.unwatch(descriptor)
            os.close(descriptor)
        return len(data)

    def _write_stdin(self, rank: RankProcess) -> None:
        pending = self._stdin_pending[rank.number]
        assert rank.stdin is not None
        try:
            written = os.write(rank.stdin, pending) if pending else 0
        except BlockingIOError:
            return
        except OSError:  # no process has it open for reading
            written = len(pending)
            self._stdin_ended.add(rank.number)
        del pending[:written]
        if not pending:
            self._launcher.send(Frame.number(FrameKind.ACK, written, rank.number))
            self._loop.unwatch(rank.stdin)
            if rank.number in self._stdin_ended:
                rank.close_stdin()
