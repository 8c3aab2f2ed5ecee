"""The exit of a rank: its code or signal, whether memory ran out, and which of several exits is the root cause."""

from __future__ import annotations

import signal
from dataclasses import dataclass

# Exit statuses as in a shell.
NOT_FOUND = 127  # of a command that does not exist
NOT_EXECUTABLE = 126  # of a command that exists and may not be executed


def signal_name(signum: int) -> str:
    """Return the name of a signal: `SIGKILL` for 9, `signal 64` for a number without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


@dataclass(frozen=True)
class RankExit:
    """The exit of one rank, in the convention of `subprocess`: a negative return code is a signal."""

    returncode: int
    out_of_memory: bool = False
    """Whether the kernel's OOM killer killed a process of the control group at that moment."""
    unasked: bool = False
    """In an elastic job, whether the process ended although the launcher had not asked it to."""
    has_departed: bool = False
    """Whether the rank exited with 0 and certainly without having called init, so that no rank need wait for it there.
    """
    worked_alone: bool = False
    """Whether the rank exited with 0 and certainly called init, and exchanged nothing with others but first values."""

    @property
    def failed(self) -> bool:
        """Whether this exit means that the job cannot succeed."""
        return self.returncode != 0

    @property
    def status(self) -> int:
        """The exit status that a shell would show: the exit code, or 128 + signal number."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def root_cause_order(self) -> int:
        """A sort key for exits that are noticed at the same moment: the likeliest root cause comes first.

        A signal comes from outside, so it is the likeliest. Exit code 1 is the least likely of the failures: Python
        exits with it after an uncaught exception, and a rank that merely lost its peers ends so too.
        """
        if self.returncode < 0:
            return 0
        return {0: 3, 1: 2}.get(self.returncode, 1)

    def __str__(self) -> str:
        """`exited with code 42`, `was killed by SIGKILL (out of memory: ...)`."""
        if self.returncode >= 0:
            memory = " (the kernel's OOM killer had ended a process of the job)" if self.out_of_memory else ""
            return f"exited with code {self.returncode}{memory}"
        memory = " (out of memory: the kernel's OOM killer ended it)" if self.out_of_memory else ""
        return f"was killed by {signal_name(-self.returncode)}{memory}"

    def encode(self) -> bytes:
        """Return the payload of an EXITED frame."""
        flags = self.out_of_memory, self.unasked, self.has_departed, self.worked_alone
        return b"%d %d %d %d %d" % (self.returncode, *flags)

    @classmethod
    def decode(cls, payload: bytes) -> RankExit:
        """Return the exit that `encode` encoded."""
        returncode, *rest = payload.split()
        return cls(int(returncode), *(word == b"1" for word in rest))
