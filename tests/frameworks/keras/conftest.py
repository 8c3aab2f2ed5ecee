"""Runs the rank programs here, on each backend in one job, which the tests then ask for its outcomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras")

BACKENDS = ("tensorflow", "jax", "torch")
KERAS2 = "tf_keras"  # goes for a backend, too
PROGRAMS = Path(__file__).parent / "programs"
DEADLINE = 400.0  # seconds; far more than anything takes, so that a busy machine fails no test


def environment(backend: str, **more: str) -> dict[str, str]:
    """Variables under which ranks are quick to start, and a rank that is waited for in vain is an error."""
    quick = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    chosen = {"TF_USE_LEGACY_KERAS": "1"} if backend == KERAS2 else {"KERAS_BACKEND": backend}
    return {**os.environ, **quick, **chosen, "DISTRUN_STALL_TIMEOUT": "60", **more}


@pytest.fixture(scope="session")
def rank_environment() -> Callable[..., dict[str, str]]:
    """Return `environment`."""
    return environment


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a `backend` runs on all of them, unless it says which."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "backend" in metafunc.fixturenames and "backend" not in given:
        metafunc.parametrize("backend", BACKENDS)


@pytest.fixture
def launch() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a Python script on `size` ranks, or on the hosts of a list as for `distrun -H`; 0 is without distrun."""

    def run(
        backend: str, script: Path, *arguments: str, size: int | str = 2, elastic: bool = False, **more: str
    ) -> subprocess.CompletedProcess[str]:
        where = ["-H", size] if isinstance(size, str) else ["-np", str(size)]
        where += ["--elastic"] if elastic else []
        launcher: Sequence[str] = [sys.executable, "-m", "distrun.runner", *where] if size else []
        return subprocess.run(
            [*launcher, sys.executable, str(script), *arguments],
            env=environment(backend, **more),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    return run


@pytest.fixture
def job(run_ranks: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """Runs `programs/<program>.py` on ranks that check everything themselves; returns what they printed.

    `size` is a number of ranks, or the numbers of ranks on each of several hosts.
    """

    def run(backend: str, program: str, size: int | tuple[int, ...]) -> str:
        done = run_ranks([sys.executable, str(PROGRAMS / f"{program}.py")], size, environment(backend))
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        return done.stdout

    return run


_outcomes: dict[str, dict[str, list[Any]]] = {}


@pytest.fixture
def outcome(
    launch: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], list[Any]]:
    """Return a function for each rank's report of a feature on a backend.

    Its first call runs all features and faults of the backend, which takes most of a minute.
    """

    def ask(backend: str, feature: str) -> list[Any]:
        if backend not in _outcomes:
            pytest.importorskip(backend)
            _outcomes[backend] = {}  # if the job fails, it is not run again for every test
            program = PROGRAMS / ("keras2.py" if backend == KERAS2 else "behaviours.py")
            done = launch(backend, program, TEST_FOLDER=str(tmp_path_factory.mktemp("keras")))
            _outcomes[backend] = _reported(done.stdout)
            assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        assert feature in _outcomes[backend], f"the job on {backend} did not come to {feature!r}"
        ranks = _outcomes[backend][feature]
        assert all(rank["ok"] for rank in ranks), [rank.get("trace") for rank in ranks]
        return [rank["value"] for rank in ranks]

    return ask


def _reported(output: str) -> dict[str, list[Any]]:
    lines = [line.partition("FEATURE ")[2] for line in output.splitlines() if "FEATURE " in line]
    return {report["name"]: report["ranks"] for report in map(json.loads, lines)}
