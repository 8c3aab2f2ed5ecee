"""The limits of this process that a shell sets by `ulimit`, in words for messages about what they have prevented."""

from __future__ import annotations

import errno
import resource
import signal
import sys
from dataclasses import dataclass

_KINDS = {
    "f": (resource.RLIMIT_FSIZE, "the size of files", "KiB", 1 << 10),
    "v": (resource.RLIMIT_AS, "address space", "KiB", 1 << 10),
    "u": (resource.RLIMIT_NPROC, "processes and threads of a user", "", 1),
    "n": (resource.RLIMIT_NOFILE, "open files", "", 1),
    "t": (resource.RLIMIT_CPU, "processor time", "s", 1),
}
_ERRORS = {errno.EFBIG: "f", errno.ENOMEM: "v", errno.EAGAIN: "u", errno.EMFILE: "n"}
_SIGNALS: dict[int, str] = {signal.SIGXFSZ: "f", signal.SIGXCPU: "t"}
_WORDS = {
    "File too large": "f",
    "MemoryError": "v",
    "Cannot allocate memory": "v",
    "bad_alloc": "v",
    "can't start new thread": "u",
    "Resource temporarily unavailable": "u",
    "Too many open files": "n",
}
"""The messages of programs, by the limit that has caused them."""


@dataclass(frozen=True)
class Limit:
    """One limit, as this process has it."""

    option: str
    """The option of `ulimit`."""
    value: int
    """`sys.maxsize` = unlimited."""

    def __str__(self) -> str:
        _, what, unit, scale = _KINDS[self.option]
        value = "no number" if self.value == sys.maxsize else f"{self.value // scale} {unit}".rstrip()
        return (
            f"the limit on {what} (ulimit -{self.option}) is {value}: raise it where it is set, in the shell (ulimit "
            f"-{self.option} {65536 if self.option == 'n' else 'unlimited'}), the batch system or limits.conf"
        )

    @property
    def hint(self) -> str:
        """The limit as a further clause of a sentence, "" if there is none."""
        return "" if self.value == sys.maxsize else f"; {self}"


def limit_on(option: str) -> Limit:
    """Return the limit for an option of `ulimit`: f, v, u, n or t."""
    value = resource.getrlimit(_KINDS[option][0])[0]
    return Limit(option, sys.maxsize if value == resource.RLIM_INFINITY else value)


def hint_for(error: OSError) -> str:
    """Return the limit that may have caused `error`, as a further clause of a sentence, "" if there is none."""
    option = _ERRORS.get(error.errno or 0)
    return "" if option is None else limit_on(option).hint


def reached_by(returncode: int, last_words: str) -> Limit | None:
    """Return the limit that a process of this machine has probably reached, or None.

    Args:
        returncode: how it ended. A negative one is a signal.
        last_words: what it wrote last to stderr.
    """
    option = _SIGNALS.get(-returncode) or next((kind for words, kind in _WORDS.items() if words in last_words), "")
    if not option or "ulimit" in last_words:
        return None
    limit = limit_on(option)
    return None if limit.value == sys.maxsize else limit
