"""Running the programs that measure, each in processes of its own: a GPU that hangs must not take the probe along."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGE_ROOT = Path(__file__).resolve().parents[4]
_PROGRAMS = "distrun.tools.doctor.gpu_checks."
_COPIES, _ALLREDUCE = 40.0, 60.0  # seconds for a program, most of which goes into the start of CUDA
# Errors of NCCL rather than a silent way around it, and the end of an allreduce that hangs. The rank says why.
_ENVIRON = {
    "DISTRUN_BACKEND": "shared_memory",
    "DISTRUN_GPU_BACKEND": "nccl",
    "DISTRUN_STALL_TIMEOUT": "20",
}


def copies(*arguments: str) -> dict[str, Any]:
    """Return what `copies` prints, or {"problem": a sentence}."""
    return _result([sys.executable, "-m", f"{_PROGRAMS}copies", *arguments], _COPIES)


def allreduce(count: int, *arguments: str) -> dict[str, Any]:
    """Return what `ranks` prints, started as a job of `count` ranks, or {"problem": a sentence}."""
    job = ["-m", "distrun.runner", "-q", "-np", str(count), "-H", f"localhost:{count}", "--no-tag-output"]
    return _result([sys.executable, *job, sys.executable, "-m", f"{_PROGRAMS}ranks", *arguments], _ALLREDUCE)


def _result(command: list[str], timeout: float) -> dict[str, Any]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    try:
        done = subprocess.run(
            command,
            cwd=_PACKAGE_ROOT,  # where `-m` finds this distrun
            env=environ | _ENVIRON,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"it did not end within {timeout:g} s"}
    if done.returncode:
        return {"problem": reason(done.stderr) or f"it ended with status {done.returncode} without a word"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def reason(stderr: str) -> str:
    """Return the last line of an error: of the launcher's report, the one of the rank that failed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    of_ranks = [line for line in lines if not line.startswith("distrun: ")]
    return re.sub(r"^[\w.]+(?:Error|Exception): ", "", ((of_ranks or lines)[-1:] or [""])[0])
