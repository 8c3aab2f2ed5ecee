"""The results of a call, or its failures, which of the workers failed first, and the error that is raised for it.

That is the function's exception, or tells how a worker ended, with its last lines.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.exceptions import RayError, RaySystemError, RayTaskError

from distrun.errors import LaunchError
from distrun.ray.placement import WorkerFacts
from distrun.ray.worker import Raised
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.failure_report import StderrTails, format_report
from distrun.runner.job.calls import raise_remote

_CAUSE = 10.0  # seconds to wait for a cause after its consequences: Ray notices late that a node is lost
_PEERS = 0.5  # seconds to wait for the peers of a lost rank, whose errors tell how it ended, which Ray does not know
_FORGET = 1.0  # seconds to wait until the calls of ended workers fail
_LONGEST_TAIL = 1 << 15  # bytes of a log
_FETCH = 3.0  # seconds to wait for the last lines from another node
_NODE = 1.0  # seconds to wait for Ray to report that a node is lost

# "rank 1 (process 3849) was killed by SIGKILL" in the error of a rank that lost its peer.
_PEER = re.compile(r"\brank (\d+)\b(?: \(process \d+[^)]*\))? (was killed by \w+(?: \d+)?|exited with status \d+)")

NOTHING = Raised(b"", "")


@dataclass(frozen=True)
class Failed:
    """A call that has failed on one rank."""

    rank: int
    lost: RayError | None = None
    """Ray's error, if the worker itself is gone."""
    raised: Raised = NOTHING
    """Otherwise the exception of the function."""
    stuck: str = ""
    """A sentence about a call or result that could not be pickled or unpickled, otherwise empty."""

    @property
    def is_consequence(self) -> bool:
        """Whether the function failed because another rank was gone. Frameworks may wrap that error in their own."""
        return "JobAbortedError" in self.raised.text


def collect(refs: Sequence[Any]) -> tuple[list[Any], list[Failed], list[Any]]:
    """Return the results of a call by rank, or its failures.

    Args:
        refs: Ray's references to the results of the workers' `try_run`, by rank.

    Returns:
        The results; the failures, with the cause first, as soon as it is known; the references that are left then.
    """
    failed: list[Failed] = []
    values: dict[int, Any] = {}
    ranks = {ref: rank for rank, ref in enumerate(refs)}
    deadline = float("inf")
    waiting = list(refs)
    while waiting and time.monotonic() < deadline:
        timeout = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        ready, waiting = ray.wait(waiting, num_returns=1, timeout=timeout)
        for ref in ready:
            outcome = _outcome(ranks[ref], ref)
            if not isinstance(outcome, Failed):
                values[ranks[ref]] = outcome[0]
                continue
            failed.append(outcome)
            deadline = min(deadline, time.monotonic() + _timeout(outcome))
    failed.sort(key=lambda each: (each.is_consequence, each.lost is None))
    return [values[rank] for rank in sorted(values)], failed, waiting


def forget(refs: Sequence[Any]) -> None:
    """Fetch and drop the results of workers that have been ended, or Ray would log their errors."""
    done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=_FORGET) if refs else ([], [])
    for ref in done:
        with suppress(Exception):
            ray.get(ref)


def _outcome(rank: int, ref: Any) -> Failed | tuple[Any]:
    """Return a result, in a tuple, or the failure in its place. Exceptions of functions come as values, not as errors
    of Ray."""
    try:
        value, raised = ray.get(ref)
    except RayTaskError as error:
        if isinstance(error.cause, RaySystemError):
            return Failed(
                rank,
                stuck=f"rank {rank} cannot unpickle the function or its arguments: {_cause(error.cause)}: what they "
                "import has to be on all nodes, as by ray.init(runtime_env={'working_dir': '.'})",
            )
        return Failed(rank, stuck=f"the result of rank {rank} cannot be pickled: {_cause(error)}")
    except RaySystemError as error:
        return Failed(rank, stuck=f"the result of rank {rank} cannot be unpickled here: {_cause(error)}")
    except RayError as error:
        return Failed(rank, error)
    return (value,) if raised is None else Failed(rank, raised=raised)


def _cause(error: RayTaskError | RaySystemError) -> str:
    cause = error.cause if isinstance(error, RayTaskError) else error.client_exc
    return f"{type(cause).__name__}: {cause}"


def _timeout(failed: Failed) -> float:
    """Return the seconds to wait for other ranks' failures, which may tell more about this one."""
    if failed.is_consequence:
        return _CAUSE
    return _PEERS if failed.lost is not None else 0.0


# The error ------------------------------------------------------------------------------------------------------------


def raise_failure(failed: Sequence[Failed], facts: Sequence[WorkerFacts], names: Mapping[str, str]) -> NoReturn:
    """Raise the first failure of a call, of those that `collect` returns: what the function raised, with a
    `RemoteTraceback` as its cause, or a LaunchError.
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
