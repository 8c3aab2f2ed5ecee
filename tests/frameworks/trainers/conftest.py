"""Runs the rank programs here on ranks that stay up, since every rank spends seconds on importing Lightning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def job(run_warm: Callable[..., str]) -> Callable[..., str]:
    """Runs `programs/<program>.py` on `size` ranks, which check everything themselves; returns what they printed.

    `size` may also be the numbers of ranks on each of several hosts.
    """

    def run(program: str, size: int | tuple[int, ...], *arguments: str, **environ: str) -> str:
        environ = {"DISTRUN_STALL_TIMEOUT": "60", **environ}
        return run_warm("lightning", size, PROGRAMS / f"{program}.py", *arguments, **environ)

    return run
