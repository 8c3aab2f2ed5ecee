"""Interruptions: what ends the waits of a rank that joins a generation, or is in it, from outside."""

from __future__ import annotations

import select
import time
from typing import Protocol

from distrun.errors import BootstrapError

_LONGEST = 1e6  # seconds that one poll can wait


class Interruption(Protocol):
    """The control channel, say. Only elastic jobs have one; None is passed around in others."""

    stop_fd: int
    """A descriptor that is readable while there is a reason."""

    @property
    def interruption(self) -> str | None:
        """The reason to wait no longer; None while there is none."""


class Either:
    """Two interruptions as one."""

    def __init__(self, first: Interruption, second: Interruption) -> None:
        self._both = first, second
        self._poll = select.epoll()  # readable itself while one of those in it is
        for each in self._both:
            self._poll.register(each.stop_fd, select.EPOLLIN)
        self.stop_fd = self._poll.fileno()

    @property
    def interruption(self) -> str | None:
        """The reason of the first that has one."""
        return self._both[0].interruption or self._both[1].interruption


def stop_descriptors(interruption: Interruption | None) -> tuple[int, ...]:
    """Return the descriptors to watch while waiting."""
    return () if interruption is None else (interruption.stop_fd,)


class _Descriptor(Protocol):
    def fileno(self) -> int: ...


def check(interruption: Interruption | None) -> None:
    """Raise `BootstrapError` if there is a reason to wait no longer."""
    reason = None if interruption is None else interruption.interruption
    if reason is not None:
        raise BootstrapError(reason)


def await_readable(connection: _Descriptor, until: float, interruption: Interruption | None) -> None:
    """Return when there is something to read.

    Args:
        connection: a socket, or what has a descriptor.
        until: the monotonic time at which to give up.
        interruption: what ends the wait before.

    Raises:
        TimeoutError: nothing came.
        BootstrapError: the wait was interrupted.
    """
    poll = select.poll()  # select() cannot take descriptors above 1023
    poll.register(connection.fileno(), select.POLLIN)
    for fd in stop_descriptors(interruption):
        poll.register(fd, select.POLLIN)
    ready = [fd for fd, _ in poll.poll(1000 * min(max(0.0, until - time.monotonic()), _LONGEST))]
    check(interruption)
    if not ready:
        raise TimeoutError("timed out")


def pause(seconds: float, interruption: Interruption | None) -> None:
    """Let some time pass.

    Raises:
        BootstrapError: the pause was interrupted.
    """
    if interruption is None:
        time.sleep(seconds)
        return
    poll = select.poll()
    poll.register(interruption.stop_fd, select.POLLIN)
    poll.poll(seconds * 1000)
    check(interruption)
