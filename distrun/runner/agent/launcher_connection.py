"""The agent's end of the connection to its launcher: frames both ways, and noticing that the launcher is gone."""

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
    """Reads the launcher's commands, and writes reports to it without ever blocking."""

    def __init__(
        self, loop: Loop, commands: int, reports: int, handle: Callable[[Frame], None], on_loss: Callable[[], None]
    ) -> None:
        """Begin to listen.

        Args:
            loop: the event loop.
            commands: the descriptor of the frames from the launcher.
            reports: the descriptor of the frames to it.
            handle: called with each frame that arrives.
            on_loss: called once when the launcher is dead or its connection is cut.
        """
        self.is_lost = False
        self.is_silent = False
        """Whether the launcher was given up for its silence; it may well be there, behind a network that is cut."""
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
        # A process the launcher's own program forked may hold our stdin open after the launcher's death.
        with suppress(OSError):
            self._parent = os.pidfd_open(os.getppid())
            loop.watch(self._parent, self.lose)

    @property
    def backlog(self) -> int:
        """The bytes that the launcher has still to take or, of output, to acknowledge; 0 when there is no launcher."""
        return 0 if self.is_lost else max(self._unacknowledged, len(self._outgoing))

    @property
    def seconds_left(self) -> float | None:
        """Seconds until `stay_in_touch` has something to do; None = it never has."""
        return None if self._keepalive is None else self._keepalive.seconds_left()

    def send(self, frame: Frame, *, is_output: bool = False) -> None:
        """Write a frame as soon as the launcher takes it; output counts as backlog until it is acknowledged."""
        if not self.is_lost:
            self._outgoing += frame.encode()
            self._unacknowledged += len(frame.payload) if is_output else 0
            self._flush()

    def send_raw(self, data: bytes) -> None:
        """Write bytes that are not a frame, before the next frame."""
        self._outgoing += data

    def acknowledge(self, count: int) -> None:
        """Note that the launcher has dealt with so many bytes of output."""
        self._unacknowledged -= count

    def open_with(self, opener: Opener) -> None:
        """From now on, take sealed frames only, and open them."""
        self._opener = opener

    def keep_alive(self, timeout: float) -> None:
        """From now on, give the launcher up after so many seconds of silence, and speak often enough not to be given
        up."""
        self._keepalive = Keepalive(timeout)

    def pause_keepalive(self) -> None:
        """Give the launcher up no longer for its silence, until `resume_keepalive`; the end of its connection still
        counts."""
        if self._keepalive is not None:
            self._keepalive.excuse()

    def resume_keepalive(self) -> None:
        """Count the launcher's silence again, from now."""
        if self._keepalive is not None:
            self._keepalive.expect()

    def stay_in_touch(self) -> None:
        """Do what is due: between hosts a connection can be cut without either end noticing."""
        if self._keepalive is None:
            return
        if self._keepalive.is_lost():
            if not self._has_words():
                self.is_silent = True
                self.lose()
        elif self._keepalive.is_due():
            self.send(Frame(FrameKind.KEEPALIVE))

    def _has_words(self) -> bool:
        """Whether something has come that was not read yet: it may have been us who were stopped or busy."""
        poll = select.poll()
        poll.register(self._commands, select.POLLIN)
        return bool(poll.poll(0))

    def lose(self) -> None:
        """Give the launcher up: it is dead, its connection is cut, or somebody asks us to leave."""
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
        """Write all that is left, however long that takes."""
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
        """Handle the frame in a sealed one. Any other is not the launcher's, and its line is given up."""
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
