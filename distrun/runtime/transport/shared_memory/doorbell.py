"""Doorbells: wake a sleeping rank when its peers have written something that it waits for.

Ranks of a host write to each other in shared memory, but memory cannot wake a sleeping process. A doorbell is an
eventfd, which the local peers receive at the rendezvous, and a word in the owner's segment that is 1 while the owner
sleeps. Ringing costs a system call only in this case. A rank waits in one `poll` for everything at once: its own bell,
the death of a peer (a pidfd becomes readable) and the network (an epoll object). A futex cannot be waited for together
with these.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import threading
from collections.abc import Callable, Iterable, Mapping

SEES_STORES_IN_ORDER = platform.machine() in ("x86_64", "AMD64", "i686")
"""Whether this processor keeps stores in order among themselves, and loads as well, so that `fence` is enough, as on
x86."""
_fence_lock = threading.Lock()


def fence() -> None:
    """Order every store before this line before every load after it.

    Python has no fence. Acquiring and releasing a lock executes an atomic read-modify-write, which on x86 is a full
    fence.
    """
    _fence_lock.acquire(blocking=False)
    try:
        _fence_lock.release()
    except RuntimeError:
        pass  # another thread held it, and released it between these two lines: the fence has happened even so


def full_fence() -> None:
    """Order every access to memory before this line before every one after it, on any processor.

    Call it between data and the number that announces them, unless `SEES_STORES_IN_ORDER`. One lock is not enough
    there: accesses may move into the critical section from both sides. But the release of one lock and the acquisition
    of the next one stay in order (ARM Architecture Reference Manual, "RCsc").
    """
    fence()
    fence()


class Doorbell:
    """One rank's bell. Its owner waits for it, and its peers ring it.

    `words` is the memory that holds the "owner sleeps" word, at `index`. No ring is lost: the owner sets the word,
    checks its condition once more, then sleeps. A peer publishes, then reads the word. With the fences, either the
    owner's last check sees what was published, or the peer sees that the owner sleeps. On processors that reorder more
    than x86 does, the bell is always rung.
    """

    def __init__(self, fd: int, words: memoryview, index: int) -> None:
        self.fd = fd
        self._words = words
        self._index = index

    @property
    def address(self) -> int:
        """The address of the "owner sleeps" word."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._words)) + 8 * self._index

    def ring(self) -> None:
        """Wake the owner if it sleeps. Call it after publishing what the owner should see."""
        if SEES_STORES_IN_ORDER:
            fence()
            if not self._words[self._index]:
                return
            # The next peer need not ring as well, since this ring follows. The word is cleared before ringing: if it
            # were cleared afterwards, the owner might have woken and be about to sleep again, and the 0 would hide
            # that.
            self._words[self._index] = 0
        self.force()

    def force(self) -> None:
        """Ring whether or not the owner sleeps."""
        try:
            os.eventfd_write(self.fd, 1)
        except OSError:
            pass  # the eventfd's counter is full, so the owner will wake, or this process's shutdown has closed it

    def arm(self) -> None:
        """Owner: announce that it is about to sleep. Check the condition once more after this, then sleep."""
        self._words[self._index] = 1
        fence()

    def disarm(self) -> None:
        """Owner: withdraw the announcement."""
        self._words[self._index] = 0

    def drain(self) -> None:
        """Owner: discard the rings so far."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def disown(self) -> None:
        """In a forked child: replace the parent's bell by a new one, which has been rung."""
        self._words, self._index = memoryview(bytearray(8)).cast("q"), 0
        fresh = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        os.dup2(fresh, self.fd, inheritable=False)
        os.close(fresh)


def new_bell_fd() -> int:
    """Return a file descriptor for a new doorbell, closed on exec."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


class Sleeper:
    """Waits for a bell, the end of processes and other descriptors in one call."""

    def __init__(
        self,
        bell: Doorbell,
        pidfds: dict[int, int],
        others: Iterable[int] = (),
        questions: Mapping[int, Callable[[], None]] | None = None,
    ) -> None:
        """`pidfds` has the rank of each pidfd. `others` are descriptors that become readable when something has
        arrived, for example over the network, and `questions` such ones with the functions that `sleep` calls then."""
        self._bell = bell
        self._pidfds = pidfds
        self._poll = select.poll()
        self._poll.register(bell.fd, select.POLLIN)
        self._questions = questions or {}
        for fd in (*pidfds, *others, *self._questions):
            self._poll.register(fd, select.POLLIN)

    def sleep(self, timeout: float | None = None) -> list[int]:
        """Sleep until the bell rings, a process ends, another descriptor is readable or `timeout` seconds have passed.

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
