"""The agent's end of the connection to its launcher: frames in both directions, and detection of a lost launcher."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from distrun.errors import BootstrapError
from distrun.runner.protocol.frames import Frame, FrameDecoder, FrameKind
from distrun.runner.protocol.keepalive import Keepalive
from distrun.runner.system.loop import WRITE, Loop

if TYPE_CHECKING:
    from distrun.host.sealing import Opener


class LauncherConnection:
    """Reads the launcher's commands, and writes reports to it without blocking."""

    def __init__(
        self, loop: Loop, commands: int, reports: int, handle: Callable[[Frame], None], on_loss: Callable[[], None]
    ) -> None:
        """Begin to read the descriptor `commands`, and call `handle` with each frame. `reports` is for frames to the
        launcher. `on_loss` is called once, when the launcher is lost.
        """
        self.is_lost = False
        self.is_silent = False
        """Whether the launcher counts as lost because it sent nothing for too long. It may still run, behind a network
        that is down.
        """
        self._loop = loop
        self._commands = commands
        self._reports = reports
        self._handle = handle
        self._on_loss = on_loss
        self._decoder, self._opened = FrameDecoder(), FrameDecoder()
        self._opener: Opener | None = None
        self._outgoing = bytearray()
        self._unacknowledged = 0
        self._keepalive: Keepalive | None = None
        self._parent: int | None = None
        os.set_blocking(commands, False)
        os.set_blocking(reports, False)
        loop.watch(commands, self._read)
        # Another child of the launcher's program may have inherited the other end of stdin and keep it open after the
        # launcher's death. So the agent also watches its parent process.
        with suppress(OSError):
            self._parent = os.pidfd_open(os.getppid())
            loop.watch(self._parent, self.lose)

    @property
    def backlog(self) -> int:
        """The bytes that the launcher has not yet read, or for output, acknowledged. 0 if the launcher is lost."""
        return 0 if self.is_lost else max(self._unacknowledged, len(self._outgoing))

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `stay_in_touch` has something to do. None = never."""
        return None if self._keepalive is None else self._keepalive.seconds_left()

    def send(self, frame: Frame, *, is_output: bool = False) -> None:
        """Write a frame as soon as the launcher reads it. Output counts as backlog until it is acknowledged."""
        if not self.is_lost:
            self._outgoing += frame.encode()
            self._unacknowledged += len(frame.payload) if is_output else 0
            self._flush()

    def send_raw(self, data: bytes) -> None:
        """Write bytes that are not a frame together with the next frame."""
        self._outgoing += data

    def acknowledge(self, count: int) -> None:
        """Record that the launcher has dealt with `count` bytes of output."""
        self._unacknowledged -= count

    def open_with(self, opener: Opener) -> None:
        """Accept only sealed frames after this call, and open them with `opener`."""
        self._opener = opener

    def keep_alive(self, timeout: float) -> None:
        """Count the launcher as lost when it sends nothing for `timeout` seconds, and send it keepalive frames."""
        self._keepalive = Keepalive(timeout)

    def pause_keepalive(self) -> None:
        """Suspend the timeout until `resume_keepalive`. The end of the connection still counts as a loss."""
        if self._keepalive is not None:
            self._keepalive.excuse()

    def resume_keepalive(self) -> None:
        """Start the timeout again, from this moment."""
        if self._keepalive is not None:
            self._keepalive.expect()

    def stay_in_touch(self) -> None:
        """Send a keepalive frame if it is due, and lose the launcher if its timeout is over."""
        if self._keepalive is None:
            return
        if self._keepalive.is_lost():
            if not self._has_words():
                self.is_silent = True
                self.lose()
        elif self._keepalive.is_due():
            self.send(Frame(FrameKind.KEEPALIVE))

    def _has_words(self) -> bool:
        """Whether unread bytes have come: then it was the agent that was stopped or busy, not the launcher."""
        poll = select.poll()
        poll.register(self._commands, select.POLLIN)
        return bool(poll.poll(0))

    def lose(self) -> None:
        """Count the launcher as lost: it is dead, its connection is broken, or a signal asks this agent to exit."""
        if self.is_lost:
            return
        self.is_lost = True
        self._keepalive = None
        self._outgoing.clear()
        for descriptor in (self._commands, self._reports, self._parent):
            if descriptor is not None:
                self._loop.unwatch(descriptor)
        self._on_loss()

    def close(self) -> None:
        """Write everything that is left, however long that takes."""
        os.set_blocking(self._reports, True)
        if not self.is_lost:
            self._flush()

    def _read(self) -> None:
        data = os.read(self._commands, 1 << 20)
        if not data:
            self.lose()
        if self._keepalive is not None:
            self._keepalive.heard()
        for frame in self._decoder.feed(data):
            if self._opener is None:
                self._handle(frame)
            else:
                self._open(self._opener, frame)

    def _open(self, opener: Opener, frame: Frame) -> None:
        """Handle the frames inside a sealed frame. Any other frame is not from the launcher, so the connection counts
        as lost.
        """
        try:
            opened = opener.open(frame.payload if frame.kind is FrameKind.SEALED else b"")
        except BootstrapError:
            self.lose()
            return
        for inner in self._opened.feed(opened):
            self._handle(inner)

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._reports, self._outgoing)]
        except BlockingIOError:
            self._loop.watch(self._reports, self._flush, WRITE)
        except OSError:  # the launcher's end is closed
            self.lose()
        else:
            self._loop.unwatch(self._reports)
