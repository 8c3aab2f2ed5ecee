"""An event loop: one thread sleeps until a descriptor is ready, a signal arrives or a timeout is over."""

from __future__ import annotations

import selectors
import signal
import socket
from collections.abc import Callable, Iterable

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Loop:
    """A set of descriptors with callbacks."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, descriptor: int, callback: Callable[[], object], event: int = READ) -> None:
        """Call `callback` whenever a descriptor is ready for `event`. A descriptor that is watched already stays as it
        is.
        """
        if descriptor not in self._selector.get_map():
            self._selector.register(descriptor, event, callback)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor, if it is watched."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def watch_signals(self, signums: Iterable[int], callback: Callable[[bytes], object]) -> None:
        """Call `callback` with the numbers of the signals that have arrived."""
        self._wakeup, self._wakeup_writer = socket.socketpair()  # both are kept open
        self._wakeup.setblocking(False)
        self._wakeup_writer.setblocking(False)
        # A handler alone would not be enough: a signal that arrives just before select() sleeps must end that sleep.
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        for signum in signums:
            signal.signal(signum, lambda *_: None)
        self.watch(self._wakeup.fileno(), lambda: callback(self._wakeup.recv(4096)))

    def run_once(self, timeout: float | None) -> None:
        """Sleep until an event, at most `timeout` seconds, and call the callbacks of all events."""
        for key, _ in self._selector.select(timeout):
            if key.fd in self._selector.get_map():  # an earlier callback may have closed it
                key.data()

    def close(self) -> None:
        """Stop watching. The descriptors stay open."""
        self._selector.close()
