"""The guard of an agent: a shell that does nothing until the agent is gone, and then ends what its ranks have left.

An agent ends what is left when its launcher is gone, and a launcher does it when an agent is. Where both are killed at
once, the kernel ends the ranks, but not what these have started in sessions of their own. The guard does, by a variable
in their environment that no other agent gives its ranks, and deletes the temporary files of an elastic job.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress

from distrun.contract.launch import AGENT
from distrun.runner.system import descendants

# The end of stdin without a line is the agent's. What its launcher, if it is here, writes to the agent can be read from
# descriptor 1, whose end is the launcher's: one that lives ends what is left itself, and this shell with it.
# A process may fork between being listed and being killed, so they are killed until none is left, for 5 seconds at
# most. The mark of the processes is $1; the paths of temporary files begin with one of the other arguments.
_SCRIPT = """
read -r word && exit
while read -r word <&1; do :; done
rounds=100
while [ $rounds -gt 0 ]; do
    pids=$(grep -lsF -- "$1" /proc/[0-9]*/environ | tr -dc '0-9\\n')
    [ -n "$pids" ] || break
    kill -9 $pids
    rounds=$((rounds - 1))
    sleep 0.05
done
shift
for prefix; do rm -rf -- "$prefix"*; done
"""


class Guard:
    """The guard of this process. It is a child that is no descendant of a rank: what ends those leaves it alone."""

    def __init__(self) -> None:
        self.mark = {AGENT: os.urandom(8).hex()}
        """The variable that all ranks have to get."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, whose: Mapping[str, str], commands: int, files: Iterable[str] = ()) -> None:
        """Start it, if that is possible.

        Args:
            whose: variables by which a launcher that has lost this process knows what to end here, the guard included.
            commands: the descriptor from which this process reads what its launcher says.
            files: what the paths of temporary files begin with.
        """
        if not descendants.are_listed():  # a guard could not be told from what ranks have left
            return
        command = ["/bin/sh", "-c", _SCRIPT, "distrun-guard", f"{AGENT}={self.mark[AGENT]}", *files]
        try:  # opened again, to block; an SSH server's sockets cannot be, and then the launcher is on another host
            launcher = os.open(f"/proc/self/fd/{commands}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            launcher = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError), open(launcher, "rb"):  # without a shell, say, the ranks run all the same
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=launcher,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath), **whose},
                start_new_session=True,
            )

    @property
    def pids(self) -> set[int]:
        """Its process id; none if there is no guard."""
        return set() if self._process is None else {self._process.pid}

    def is_alone(self) -> bool:
        """Whether this process has no child but the guard."""
        return self._process is not None and not descendants.has_orphans(self.pids)

    def dismiss(self) -> None:
        """Have it end: nothing is left that it would have to end."""
        if self._process is not None:
            with suppress(OSError):  # somebody has killed it
                self._process.communicate(b"\n")
            self._process = None
