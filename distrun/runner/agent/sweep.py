"""Ending what a dead agent has left behind on its host.

The program reads `JOB AGENT` from stdin, the name of the job and the process id of the agent, and kills every process
of that job, which it knows by the environment.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from distrun.runner.system.descendants import has_marker

_TIMEOUT = 5.0  # seconds of SIGKILL until we stop trying
_INTERVAL = 0.02


def main() -> None:
    """Read the job and the agent from stdin, and kill until no process is left; exit with 1 if some are."""
    job, agent = sys.stdin.readline().split()
    give_up = time.monotonic() + _TIMEOUT
    while sweep(f"DISTRUN_JOB={job}", int(agent)):
        if time.monotonic() >= give_up:
            sys.exit(1)
        time.sleep(_INTERVAL)  # a process may fork between being listed and being killed


def sweep(marker: str, agent: int) -> int:
    """SIGKILL every process with this `NAME=VALUE` in its environment, and the agent; return their number."""
    import psutil

    killed = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_agent = process.pid == agent and "distrun.runner.agent" in process.cmdline()
            if process.pid != os.getpid() and (is_agent or has_marker(process, marker)):
                process.kill()
                killed += 1
    return killed


if __name__ == "__main__":
    main()
