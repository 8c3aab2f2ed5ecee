"""Jobs of real processes whose ranks are killed and replaced, by a launcher in miniature."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from without_launcher.elastic_supervisor import Supervisor, python

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    """Return a function that starts a job: `supervise("objects", 3, "100")` has 3 ranks of programs/objects.py."""
    with ExitStack() as jobs:

        def start(program: str, size: int, *arguments: str, hosts: int = 1, **environ: str) -> Supervisor:
            environ = {"DISTRUN_STALL_TIMEOUT": "200", **environ}
            supervisor = Supervisor(python(PROGRAMS / f"{program}.py", *arguments), tmp_path, environ, hosts)
            jobs.enter_context(supervisor).begin(size)
            return supervisor

        yield start
