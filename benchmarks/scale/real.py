"""Real ranks that believe that they are on several hosts: what simulated ones are compared with."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.support.processes import ProcessError
from distrun.contract.launch import LaunchContract
from distrun.host.endpoints import free_port

DEADLINE = 300.0


def hosts_of(counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each host, given their numbers."""
    starts = [sum(counts[:host]) for host in range(len(counts))]
    return tuple(tuple(range(start, start + count)) for start, count in zip(starts, counts, strict=True))


def run(
    counts: Sequence[int], arguments: Sequence[str], environ: Mapping[str, str], may_fail: bool = False
) -> list[Any]:
    """Run `benchmarks.scale.ranks` on all ranks of a job; return what each has printed, None if nothing.

    Args:
        counts: the number of ranks of each host.
        arguments: those of the program.
        environ: variables beside those of the launch contract.
        may_fail: whether ranks may end with an error.

    Raises:
        ProcessError: a rank failed, or all together took too long.
    """
    job, key, port, master = secrets.token_hex(16), secrets.token_hex(32), free_port(), free_port()
    ranks = []
    for host, local_ranks in enumerate(hosts_of(counts)):
        for place, rank in enumerate(local_ranks):
            having = [other for other, count in enumerate(counts) if count > place]
            contract = LaunchContract(
                *(job, key, rank, sum(counts), place, counts[host], having.index(host), len(having), f"host{host}"),
                *("127.0.0.1", master, f"127.0.0.1:{port}"),
            )
            born = {**environ, **contract.to_environ(), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "benchmarks.scale.ranks", *arguments]
            ranks.append(subprocess.Popen(command, env=born, stdout=subprocess.PIPE, text=True))
    try:
        told = [rank.communicate(timeout=DEADLINE)[0] for rank in ranks]
        if not may_fail and any(rank.returncode for rank in ranks):
            raise ProcessError("a rank failed")
        return [json.loads(text) if text else None for text in told]
    except subprocess.TimeoutExpired:
        raise ProcessError(f"{sum(counts)} ranks took more than {DEADLINE:g} s") from None
    finally:
        for process in ranks:
            process.kill()
            process.wait()
