"""Training with optax; see programs/training.py and programs/diloco.py for the behaviours."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from distrun.host.endpoints import free_port

pytest.importorskip("optax")

pytestmark = pytest.mark.feature_group("JAX")
feature = partial(pytest.mark.feature, backend="jax")

EXAMPLE = Path(__file__).parents[3] / "examples" / "jax_digits.py"


@pytest.mark.gate
@feature("DistributedOptimizer of any optax transformation, clipping included")
@feature("value_and_grad, grad")
@feature("steps in a lax.scan on the device")
@feature("gradient accumulation (optax.MultiSteps)")
@feature("broadcast_parameters of parameters, optimizer states and random keys")
@feature("models that differ between ranks are told apart by the name of the leaf")
def test_training_equals_one_process_on_the_combined_batches(warm_job):
    warm_job("training", (1, 1))  # only between hosts are gradients compressed


@feature("DiLoCo and local SGD between hosts")
@pytest.mark.parametrize("size", [2, (1, 1)], ids=str)
def test_hosts_train_by_themselves_and_come_together_now_and_then(warm_job, size):
    assert warm_job("diloco", size).count("done") == 2


@pytest.mark.gate
@feature("jax.distributed started from the job (initialize)")
def test_jaxs_own_collectives_work_between_the_ranks_of_a_job(job):
    assert job("native", 2).count("native") == 2


def test_jaxs_own_collectives_work_where_another_launcher_has_started_the_ranks():
    """Without distrun's launch contract rank 0 finds a port."""
    program = Path(__file__).parent / "programs" / "native.py"
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, "JAX_PLATFORMS": "cpu", **_torchrun(rank, port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        output, _ = rank.communicate(timeout=240)
        assert rank.returncode == 0, output
        assert "native" in output


def _torchrun(rank: int, port: int) -> dict[str, str]:
    ranks = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": 2,
        "LOCAL_WORLD_SIZE": 2,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1,
    }
    return {
        **{name: str(value) for name, value in ranks.items()},
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": f"native-{os.getpid()}",
    }


@feature("examples/jax_digits.py")
def test_the_digits_are_learned_and_all_checks_hold(run_ranks):
    pytest.importorskip("sklearn")
    command = [sys.executable, str(EXAMPLE), "--check"]
    done = run_ranks(command, 2, {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("... ok") == 3
    assert "FAILED" not in done.stdout
