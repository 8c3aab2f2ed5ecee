"""How a rank ended: exit code or signal, whether the kernel ran out of memory, and which of several ends to blame."""

from __future__ import annotations

import signal
from dataclasses import dataclass

NOT_FOUND = 127  # exit status of a command that does not exist, as in a shell
NOT_EXECUTABLE = 126  # ... that exists and may not be executed


def signal_name(signum: int) -> str:
    """`SIGKILL` for 9; `signal 64` for a number without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


@dataclass(frozen=True)
class RankExit:
    """The end of one rank, in the convention of `subprocess`: a negative return code is a signal."""

    returncode: int
    out_of_memory: bool = False
    """Whether the kernel killed a process for want of memory at that moment."""

    @property
    def failed(self) -> bool:
        """Whether this end means that the job cannot succeed."""
        return self.returncode != 0

    @property
    def status(self) -> int:
        """The exit status a shell would show: the exit code, or 128 + signal number."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode

    @property
    def root_cause_order(self) -> int:
        """Sort key for ends noticed at the same moment: a signal comes from outside, so it is the likeliest cause; exit
        code 1 is what Python exits with when it merely lost its peers, so it is the least likely."""
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
        """As the payload of an EXITED frame."""
        return b"%d %d" % (self.returncode, self.out_of_memory)

    @classmethod
    def decode(cls, payload: bytes) -> RankExit:
        """The inverse of `encode`."""
        returncode, out_of_memory = payload.split()
        return cls(int(returncode), out_of_memory == b"1")
