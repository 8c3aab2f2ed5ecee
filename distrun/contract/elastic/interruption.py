"""Interruptions: reasons from outside to stop waiting for other ranks, such as a new generation."""

from __future__ import annotations

import select
import time
from typing import Protocol

from distrun.errors import BootstrapError

_LONGEST = 1e6  # seconds that one poll can wait


class Interruption(Protocol):
    """A source of reasons to stop waiting, such as the control channel. Jobs that are not elastic have None instead."""

    stop_fd: int
    """A descriptor that is readable while there is a reason."""

    @property
    def interruption(self) -> str | None:
        """The reason to stop waiting. None while there is none."""


class Either:
    """Two interruptions combined into one."""

    def __init__(self, first: Interruption, second: Interruption) -> None:
        self._both = first, second
        self._poll = select.epoll()  # an epoll descriptor is readable while one of its members is
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
    """Raise `BootstrapError` if there is a reason to stop waiting."""
    reason = None if interruption is None else interruption.interruption
    if reason is not None:
        raise BootstrapError(reason)


def await_readable(connection: _Descriptor, until: float, interruption: Interruption | None) -> None:
    """Wait until a connection is readable.

    Args:
        connection: a socket, or another object with a descriptor.
        until: the monotonic time to give up.
        interruption: may end the wait earlier.

    Raises:
        TimeoutError: it is not readable in time.
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
    """Sleep for this many seconds, or until an interruption.

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
