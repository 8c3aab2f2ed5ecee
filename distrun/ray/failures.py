"""The results of a call, or its failures and which of the workers failed first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RaySystemError, RayTaskError

from distrun.ray.worker import Raised

_CAUSE = 10.0  # seconds to wait for a cause after its consequences: Ray notices late that a node is lost
_PEERS = 0.5  # seconds to wait for the peers of a lost rank, whose errors tell how it ended, which Ray does not know
_FORGET = 1.0  # seconds to wait until the calls of ended workers fail

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
    of
    Ray."""
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
