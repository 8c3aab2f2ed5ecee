"""Doorbells wake a rank that sleeps when there is something for it to look at.

Ranks of a host write to each other in shared memory, but memory cannot wake a sleeper. A doorbell is an eventfd, handed
to the local peers at the rendezvous, next to a word in the owner's segment that says whether the owner sleeps. Ringing
costs a system call only if it does. A rank waits in one `poll` for everything at once: its own bell, the death of a
peer (a pidfd becomes readable) and the network (an epoll object). A futex could not be waited for together with those.
"""

from __future__ import annotations

import os
import platform
import select
import threading
from collections.abc import Callable, Iterable, Mapping

SEES_STORES_IN_ORDER = platform.machine() in ("x86_64", "AMD64", "i686")
"""Whether a fence is enough to see what others have written before theirs, as on x86."""
_fence_lock = threading.Lock()


def fence() -> None:
    """Order every store before this line before every load after it.

    Python has no fence. Taking and leaving a lock executes an atomic read-modify-write, which on x86 is one.
    """
    _fence_lock.acquire(blocking=False)
    try:
        _fence_lock.release()
    except RuntimeError:
        pass  # another thread held it, and released it between our two lines: the fence has happened all the same


class Doorbell:
    """One rank's bell, as the owner waits for it and as its peers ring it.

    `words` is the memory that holds the "owner sleeps" word, at `index`. No ring is lost: the owner says that it
    sleeps, then looks once more, then sleeps; a peer publishes, then reads the word. With the fences, either the
    owner's last look sees what was published or the peer sees that the owner sleeps. On machines that may reorder more
    than x86 does, the bell is always rung.
    """

    def __init__(self, fd: int, words: memoryview, index: int) -> None:
        self.fd = fd
        self._words = words
        self._index = index

    def ring(self) -> None:
        """Wake the owner if it sleeps. Call it after publishing what it should see."""
        if SEES_STORES_IN_ORDER:
            fence()
            if not self._words[self._index]:
                return
            # A peer that comes next need not ring as well, since our ring follows. (If we rang first, our late 0 could
            # hide that the owner has woken and gone to sleep again.)
            self._words[self._index] = 0
        self.force()

    def force(self) -> None:
        """Ring whether or not the owner says that it sleeps."""
        try:
            os.eventfd_write(self.fd, 1)
        except OSError:
            pass  # it is full, and the owner will wake; or our own shutdown has closed it

    def arm(self) -> None:
        """Owner: announce that it is about to sleep. Look once more at what you wait for, then `sleep`."""
        self._words[self._index] = 1
        fence()

    def disarm(self) -> None:
        """Owner: take the announcement back."""
        self._words[self._index] = 0

    def drain(self) -> None:
        """Owner: forget the rings so far."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def disown(self) -> None:
        """In a forked child, which shares the bell: have one of its own instead, which rings."""
        self._words, self._index = memoryview(bytearray(8)).cast("q"), 0
        fresh = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        os.dup2(fresh, self.fd, inheritable=False)
        os.close(fresh)


def new_bell_fd() -> int:
    """Return a file descriptor for a new doorbell, closed on exec."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


class Sleeper:
    """Waits for a bell, for the end of processes and for what else there is in one call."""

    def __init__(
        self,
        bell: Doorbell,
        pidfds: dict[int, int],
        others: Iterable[int] = (),
        questions: Mapping[int, Callable[[], None]] | None = None,
    ) -> None:
        """`pidfds` maps each rank's pidfd to the rank; `others` are descriptors that are readable when something
        came, over the network, say; `questions` maps such descriptors to what is to be called then."""
        self._bell = bell
        self._pidfds = pidfds
        self._poll = select.poll()
        self._poll.register(bell.fd, select.POLLIN)
        self._questions = questions or {}
        for fd in (*pidfds, *others, *self._questions):
            self._poll.register(fd, select.POLLIN)

    def sleep(self, timeout: float | None = None) -> list[int]:
        """Sleep until the bell rings, a process ends, something else has come or `timeout` seconds are over.

        Returns:
            The ranks that have ended since the last call.
        """
        ended = []
        for fd, _ in self._poll.poll(None if timeout is None else max(0.0, timeout) * 1000):
            if fd == self._bell.fd:
                self._bell.drain()
            elif fd in self._pidfds:
                self._poll.unregister(fd)
                ended.append(self._pidfds[fd])
            elif fd in self._questions:
                self._questions[fd]()
        return ended
