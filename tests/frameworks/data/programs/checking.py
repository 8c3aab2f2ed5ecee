"""Shared parts of the rank programs: running checks one after the other, and reporting each."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from types import FunctionType

import distrun

_checks: list[FunctionType] = []


def check(function: FunctionType) -> FunctionType:
    """Register a check; all ranks run all checks in the order of their definition."""
    _checks.append(function)
    return function


def run_checks() -> None:
    """Run those that have not been run; rank 0 prints a line for each."""
    while _checks:
        function = _checks.pop(0)
        name = f"{Path(function.__code__.co_filename).stem}.{function.__name__}"
        trouble = ""
        try:
            function()
        except Exception:
            trouble = f"rank {distrun.rank()}: {traceback.format_exc()}"
        troubles = [text for text in distrun.allgather_object(trouble) if text]
        if distrun.rank() == 0:
            print("outcome:", json.dumps([name, "\n".join(troubles) or "ok"]), flush=True)


def dealt(mine: list[int]) -> list[int]:
    """Everybody's samples in the common order: dealt out in turn, so taken back in turn."""
    everybodys = distrun.allgather_object(list(map(int, mine)))
    assert len({len(samples) for samples in everybodys}) == 1, everybodys
    return [sample for round_ in zip(*everybodys, strict=True) for sample in round_]
