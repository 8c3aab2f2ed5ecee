"""Batch scripts and interactive shells of Flux."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distrun.errors import UsageError
from distrun.host.numerals import MOST_RANKS
from distrun.runner.planning.allocation.allocated import Allocation
from distrun.runner.planning.hosts import Host, expand

# A script or shell that `flux batch` or `flux alloc` has started has FLUX_URI, and asks for the rest. A task of `flux
# run` has FLUX_JOB_ID=fABCdef3, FLUX_JOB_SIZE=1 and FLUX_TASK_RANK=0 as well. The answer is Flux's RFC 20:
#   {"version": 1, "execution": {"R_lite": [{"rank": "0-1", "children": {"core": "0-15", "gpu": "0-3"}}],
#    "nodelist": ["n[12-13]"], "starttime": 0.0, "expiration": 0.0}}
_URI = "FLUX_URI"
_JOB = "FLUX_JOB_ID"
_TASK = "FLUX_TASK_RANK"
_TASKS = "FLUX_JOB_SIZE"
_TIMEOUT = 30.0  # seconds
_REMEDY = "give the hosts with -H"


def _ask(command: Sequence[str]) -> str:
    """Return the output of a command of Flux. Raises UsageError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = (
            (error.strerror or str(error)).lower() if isinstance(error, OSError) else f"no answer in {_TIMEOUT:g} s"
        )
    else:
        if done.returncode == 0:
            return done.stdout
        reason = done.stderr.strip() or f"exit status {done.returncode}"
    raise UsageError(f"{_URI} is set, and `{' '.join(command)}` does not tell the hosts: {reason}; {_REMEDY}")


def read(environ: Mapping[str, str], ask: Callable[[Sequence[str]], str] = _ask) -> Allocation | None:
    """Return the allocation that Flux reports to `ask`, or None outside of Flux.

    A host has one slot per GPU if any host has GPUs, else one per core.

    Raises:
        UsageError: Flux gives no valid answer, or has started several copies of distrun.
    """
    if not environ.get(_URI):
        return None
    job = environ.get(_JOB, "") if _TASK in environ else ""
    tasks = environ.get(_TASKS, "1") if job else "1"
    if tasks != "1":
        raise UsageError(
            f"flux run started {tasks} copies of distrun ({_TASKS}), which would start each rank {tasks} times: start "
            "distrun once, in a script of `flux batch`, or the script by `flux run`, without distrun"
        )
    text = ask(["flux", "job", "info", job, "R"] if job else ["flux", "resource", "R"])
    try:
        return Allocation("Flux", tuple(_hosts(json.loads(text)["execution"])), job)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(f"Flux says {text[:200]!r}, which is no set of resources: {_REMEDY}") from None


def _hosts(execution: Mapping[str, Any]) -> list[Host]:
    """Return the hosts of a resource set, whose names are in the order of their numbers in the instance."""
    children = {rank: part["children"] for part in execution["R_lite"] for rank in _ids(part["rank"])}
    names = [name for text in execution["nodelist"] for name in expand(text, _REMEDY)]
    kind = "gpu" if any(part.get("gpu") for part in children.values()) else "core"
    slots = [len(_ids(children[rank].get(kind, ""))) for rank in sorted(children)]
    return [Host(name, count) for name, count in zip(names, slots, strict=True) if count]


def _ids(text: str) -> list[int]:
    """Return the numbers in a list such as `0-3,7`."""
    ids: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if len(ids) + len(numbers) > MOST_RANKS:
            raise ValueError(f"more than {MOST_RANKS} numbers")
        ids += numbers
    return ids
