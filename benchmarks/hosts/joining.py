"""Joining: the time from the start of the last host of a job to the first step of its ranks.

    python -m benchmarks.hosts.joining [--hosts 2] [--rounds 7]

All hosts are this machine. The others wait for host 0 when it starts, as pods do whose first one is the last to be
ready. The ranks initialise and do an allreduce; what importing costs is measured by itself and taken off.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import time

from distrun.host.endpoints import free_port

IMPORTS = "import distrun, numpy"
STEP = f"""
{IMPORTS}
import time
distrun.init()
distrun.allreduce(numpy.ones(1))
print("first step", time.time(), flush=True)
"""
DEADLINE = 60.0


def host(index: int, hosts: int, environ: dict[str, str]) -> subprocess.Popen[str]:
    """Start one host of a job."""
    return subprocess.Popen(
        [sys.executable, "-m", "distrun.runner", "agent", "--", sys.executable, "-c", STEP],
        env={**os.environ, **environ, "DISTRUN_HOSTS": str(hosts), "JOB_COMPLETION_INDEX": str(index)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def measure(hosts: int) -> float:
    """Return the seconds from the start of host 0 to the last rank's first step."""
    environ = {"DISTRUN_KEY": secrets.token_hex(32), "DISTRUN_ENDPOINT": f"127.0.0.1:{free_port()}"}
    others = [host(index, hosts, environ) for index in range(1, hosts)]
    for other in others:
        assert other.stderr is not None
        other.stderr.readline()  # it says that it waits for the launcher
    began = time.time()
    first = host(0, hosts, environ)
    output, said = first.communicate(timeout=DEADLINE)
    for other in others:
        other.communicate(timeout=DEADLINE)
    times = [float(line.split()[-1]) for line in output.splitlines() if "first step" in line]
    if len(times) != hosts:
        raise RuntimeError(f"{len(times)} of {hosts} ranks took a step: {said}")
    return max(times) - began


def importing(hosts: int) -> float:
    """Return the seconds that as many processes at once need to import what the ranks do."""
    began = time.time()
    for process in [subprocess.Popen([sys.executable, "-c", IMPORTS]) for _ in range(hosts)]:
        process.wait()
    return time.time() - began


def main() -> None:
    """Measure, and print the median and the best of all rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    whole = [measure(options.hosts) for _ in range(options.rounds)]
    imports = [importing(options.hosts) for _ in range(options.rounds)]
    for name, pick in (("median", statistics.median), ("best", min)):
        step, alone = pick(whole), pick(imports)
        print(f"{options.hosts} hosts, {name} of {options.rounds}: first step after {step:.2f} s, of which importing")
        print(f"    takes {alone:.2f} s; so joining, starting and initialising take {step - alone:.2f} s")


if __name__ == "__main__":
    main()
