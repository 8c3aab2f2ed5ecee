"""Ending the processes that a dead agent left behind on its host, and deleting the temporary files of an elastic job.

The program reads `JOB AGENT` from stdin, the id of the job and the process id of the agent, and kills every process
that has the job in its environment. With `JOB AGENT HOST` it kills only processes of this host. An elastic job, or one
with servers that move, continues on other hosts, and another "host" may be another container on the same machine.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from distrun.runner.system.descendants import has_marker

_TIMEOUT = 5.0  # seconds of SIGKILL before giving up
_INTERVAL = 0.02


def main() -> None:
    """Kill the processes that the line on stdin describes until none is left. Exits with 1 if some remain."""
    job, agent, *host = sys.stdin.readline().split()
    markers = [f"DISTRUN_JOB={job}", *(f"DISTRUN_HOSTNAME={name}" for name in host)]
    give_up = time.monotonic() + _TIMEOUT
    while sweep(markers, int(agent)):
        if time.monotonic() >= give_up:
            sys.exit(1)
        time.sleep(_INTERVAL)  # a process may fork between being listed and being killed
    for name in host:
        from distrun.runner.system import scratch

        scratch.remove_all({**os.environ, "DISTRUN_JOB": job, "DISTRUN_HOSTNAME": name})


def sweep(markers: Sequence[str], agent: int) -> int:
    """SIGKILL the agent, and every process with all `markers`, `NAME=VALUE`, in its environment. Returns the number."""
    import psutil

    killed = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_agent = process.pid == agent and "distrun.runner.agent" in process.cmdline()
            if process.pid != os.getpid() and (is_agent or all(has_marker(process, marker) for marker in markers)):
                process.kill()
                killed += 1
    return killed


if __name__ == "__main__":
    main()
