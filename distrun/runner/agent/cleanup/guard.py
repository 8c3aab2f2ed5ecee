"""The guard of an agent: a shell that waits until the agent is gone, and then ends the processes that its ranks left.

An agent cleans up when its launcher is gone, and a launcher when an agent is gone. If both are killed at once, the
kernel ends the ranks (by their parent-death signal), but not the processes that ranks started in other sessions. The
guard kills these, which it finds by an environment variable that is unique to this agent's ranks, and deletes the
temporary files of an elastic job.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress

from distrun.contract.launch import AGENT
from distrun.runner.system import descendants

# End of file on stdin without a line means that the agent died. Descriptor 1 is the pipe from a launcher on this
# machine to the agent: its end of file means that the launcher is gone, too. A launcher that lives ends the processes
# itself, and this shell with them. A process may fork between being listed and being killed, so they are killed until
# none is left, for 5 seconds at most. $1 is the mark in the processes' environment, and the other arguments are
# prefixes of the paths of temporary files.
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
    """The guard of this process: a child that does not belong to a rank, and is spared when the ranks' descendants are
    ended.
    """

    def __init__(self) -> None:
        self.mark = {AGENT: os.urandom(8).hex()}
        """The variable that all ranks must get."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, whose: Mapping[str, str], commands: int, files: Iterable[str] = ()) -> None:
        """Start the guard, if that is possible.

        Args:
            whose: variables that identify the job's processes on this host, so that a launcher that has lost this agent
                ends the guard with them.
            commands: the descriptor of the frames from the launcher.
            files: prefixes of the paths of temporary files.
        """
        if not descendants.are_listed():  # a guard could not be told apart from the ranks' leftovers
            return
        command = ["/bin/sh", "-c", _SCRIPT, "distrun-guard", f"{AGENT}={self.mark[AGENT]}", *files]
        try:  # reopened, so that reads block: fails for an SSH server's socket, where the launcher is on another host
            launcher = os.open(f"/proc/self/fd/{commands}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            launcher = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError), open(launcher, "rb"):  # for example without a shell: the ranks run all the same
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
        """The process id of the guard, or nothing without a guard."""
        return set() if self._process is None else {self._process.pid}

    def is_alone(self) -> bool:
        """Whether this process has no child but the guard."""
        return self._process is not None and not descendants.has_orphans(self.pids)

    def dismiss(self) -> None:
        """End the guard without cleaning up."""
        if self._process is not None:
            with suppress(OSError):  # it was killed
                self._process.communicate(b"\n")
            self._process = None
