"""Runs the rank programs here, on each backend in one job, and says on which backends a test runs.

A test with a `backend` runs on those of Keras 3, or on those of its marker `backends`. The gate has one of all backends
each day, the same in all tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from session.tiers import in_turn

pytest.importorskip("keras")

KERAS3 = ("tensorflow", "jax", "torch")
KERAS2 = "tf_keras"  # goes for a backend, too
PARAMETERS = dict(zip((*KERAS3, KERAS2), in_turn(*KERAS3, KERAS2), strict=True))
PROGRAMS = Path(__file__).parent / "programs"
DEADLINE = 400.0  # seconds; far more than anything takes, so that a busy machine fails no test


def environment(backend: str, **more: str) -> dict[str, str]:
    """Variables under which ranks are quick to start, and a rank that is waited for in vain is an error."""
    quick = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    chosen = {"TF_USE_LEGACY_KERAS": "1"} if backend == KERAS2 else {"KERAS_BACKEND": backend}
    return {**os.environ, **quick, **chosen, "DISTRUN_STALL_TIMEOUT": "120", **more}


@pytest.fixture(scope="session")
def rank_environment() -> Callable[..., dict[str, str]]:
    """Return `environment`."""
    return environment


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "backends(*names): the backends on which a test of Keras runs")
    config.addinivalue_line("markers", "behaviours(*names): those that a test of Keras looks at, one by one")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test runs on each of its backends, and for each behaviour."""
    if behaviours := metafunc.definition.get_closest_marker("behaviours"):
        metafunc.parametrize("behaviour", behaviours.args)
    if "backend" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("backends")
        names = marker.args if marker else KERAS3
        metafunc.parametrize("backend", [PARAMETERS[name] for name in names], scope="module")


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
def ranks(
    request: pytest.FixtureRequest,
    launch: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path_factory: pytest.TempPathFactory,
    backend: str,
    behaviour: str,
) -> list[Any]:
    """Each rank's report of a behaviour on a backend.

    The first test that asks runs all behaviours of the backend that tests of this session ask for.
    """
    if backend not in _outcomes:
        pytest.importorskip(backend)
        _outcomes[backend] = {}  # if the job fails, it is not run again for every test
        program = PROGRAMS / ("keras2.py" if backend == KERAS2 else "behaviours.py")
        wanted = _asked_for(request.session.items, backend)
        done = launch(backend, program, *wanted, TEST_FOLDER=str(tmp_path_factory.mktemp("keras")))
        _outcomes[backend] = _reported(done.stdout)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    assert behaviour in _outcomes[backend], f"the job on {backend} did not come to {behaviour!r}"
    reports = _outcomes[backend][behaviour]
    assert all(rank["ok"] for rank in reports), [rank.get("trace") for rank in reports]
    return [rank["value"] for rank in reports]


def _asked_for(items: Sequence[pytest.Item], backend: str) -> list[str]:
    """Return the behaviours that tests look at on a backend."""
    parameters = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return sorted({each["behaviour"] for each in parameters if "behaviour" in each and each["backend"] == backend})


def _reported(output: str) -> dict[str, list[Any]]:
    lines = [line.partition("FEATURE ")[2] for line in output.splitlines() if "FEATURE " in line]
    return {report["name"]: report["ranks"] for report in map(json.loads, lines)}
