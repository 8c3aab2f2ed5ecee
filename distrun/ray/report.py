"""The error for the failure of a call: the function's exception, or how a worker ended, with its last lines."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import ray
from ray.exceptions import RayError

from distrun.errors import LaunchError
from distrun.ray.failures import Failed
from distrun.ray.placement import WorkerFacts
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.failure_report import StderrTails, format_report
from distrun.runner.job.calls import raise_remote

_LONGEST_TAIL = 1 << 15  # bytes of a log
_FETCH = 3.0  # seconds to wait for the last lines from another node
_NODE = 1.0  # seconds to wait for Ray to report that a node is lost

# "rank 1 (process 3849) was killed by SIGKILL" in the error of a rank that lost its peer.
_PEER = re.compile(r"\brank (\d+)\b(?: \(process \d+[^)]*\))? (was killed by \w+(?: \d+)?|exited with status \d+)")


def raise_failure(failed: Sequence[Failed], facts: Sequence[WorkerFacts], names: Mapping[str, str]) -> NoReturn:
    """Raise the first failure of a call.

    Args:
        failed: the failures, with the cause first.
        facts: the workers, by rank.
        names: the names of the nodes.

    Raises:
        LaunchError: a worker is gone, or a call or result could not be pickled or unpickled.
        Exception: the exception that the function raised. Its cause is a `RemoteTraceback`.
    """
    first = failed[0]
    if first.stuck:
        raise LaunchError(first.stuck)
    if first.lost is None:
        raise_remote(first.rank, first.raised.pickled, first.raised.text)
    fact = facts[first.rank]
    is_lost = _is_node_lost(fact.node, str(first.lost))
    what = "is gone: its node is lost" if is_lost else _told_by_peers(first.rank, failed[1:]) or _by_ray(first.lost)
    name = f"rank {first.rank} on node {names[fact.node]}"
    report = format_report(
        Failure(first.rank, 1, what), name, {} if is_lost else {first.rank: fact.pid}, _last_lines(fact, is_lost)
    )
    raise LaunchError(report.removeprefix("distrun: ")) from None


def _told_by_peers(rank: int, others: Sequence[Failed]) -> str | None:
    """Return how a rank ended, if the errors of its local peers tell. They learn it from the kernel; Ray does not know
    it."""
    for other in others:
        for number, what in _PEER.findall(other.raised.text):
            if int(number) == rank:
                return str(what)
    return None


def _by_ray(error: RayError) -> str:
    """Return how a worker ended according to Ray, in a few words."""
    text = str(error)
    if "memory" in text and "unexpectedly exits with a connection error" not in text:
        return "was killed by Ray, as its node ran short of memory"
    if "connection error" in text:
        return "ended without a word: it crashed, or was killed, as by the kernel when memory ran short"
    if "INTENDED" in text or "exit_actor" in text:
        return "ended before its function returned"
    detail = re.search(r"Worker exit detail: ([^\n]*?)(?:\. |\n|$)", text)
    return f"is gone: {detail[1] if detail else text.strip().splitlines()[-1]}"


def _is_node_lost(node: str, text: str) -> bool:
    """Return whether a node is lost. Ray reports the lost connection first, and the lost node some time later."""
    if "node has died" in text or "node died" in text.lower():
        return True
    deadline = time.monotonic() + (_NODE if "unavailable" in text else 0.0)
    while True:
        alive = {entry["NodeID"]: entry["Alive"] for entry in ray.nodes()}
        if not alive.get(node, False):
            return True
        if time.monotonic() >= deadline:
            return "unavailable" in text and _is_unreachable(node)
        time.sleep(0.05)  # Ray has no notification for it


def _is_unreachable(node: str) -> bool:
    """Return whether the raylet of a node refuses connections."""
    for entry in ray.nodes():
        if entry["NodeID"] == node:
            try:
                socket.create_connection((entry["NodeManagerAddress"], entry["NodeManagerPort"]), timeout=1.0).close()
            except OSError:
                return True
    return False


def _last_lines(fact: WorkerFacts, is_lost: bool) -> list[bytes]:
    """Return the last lines that a worker wrote to stderr, if its log can be read."""
    if len(fact.logs) < 2:
        return []
    data = tail(*fact.logs[1])
    if data is None and not is_lost:
        data = _fetch(fact)
    tails = StderrTails()
    tails.record(0, b"\n".join(line for line in (data or b"").split(b"\n") if not line.startswith(b":")))
    return tails.lines(0)


def tail(path: str, start: int) -> bytes | None:
    """Return the end of a log from an offset on, or None if there is no such file here."""
    with suppress(OSError), Path(path).open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(start, size - _LONGEST_TAIL))
        return log.read()
    return None


def _fetch(fact: WorkerFacts) -> bytes | None:
    """Return the end of a log of another node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(fact.node, soft=False)
    task = ray.remote(tail).options(num_cpus=0, scheduling_strategy=there)
    with suppress(RayError):
        data: bytes | None = ray.get(task.remote(*fact.logs[1]), timeout=_FETCH)
        return data
    return None
