"""DiLoCo and local SGD in `fit`; see programs/diloco.py for the behaviours."""

from __future__ import annotations

from pathlib import Path

import pytest
from without_launcher.elastic_supervisor import Supervisor, python

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.feature_group("Keras")


@pytest.mark.feature("DiLoCo and local SGD between hosts")
@pytest.mark.backends("tensorflow", "jax", "torch", "tf_keras")
def test_hosts_train_by_themselves_and_come_together_now_and_then(job, backend):
    pytest.importorskip(backend)
    assert job(backend, "diloco", (1, 1)).count("came together") == 2


@pytest.mark.backends("tensorflow", "jax")
def test_hosts_go_on_without_one_and_with_another(backend, tmp_path, rank_environment):
    pytest.importorskip(backend)
    variables = rank_environment(backend, HOLD="1:1:18 2:0:9", DISTRUN_STALL_TIMEOUT="200", TMPDIR=str(tmp_path))
    with Supervisor(python(PROGRAMS / "diloco_elastic.py"), tmp_path, variables, hosts=2) as supervisor:
        supervisor.begin(2)
        supervisor.members[0].await_step(1, 15)
        supervisor.replace(1)
        supervisor.members[1].await_step(2, 3)
        supervisor.replace(0)
        facts = supervisor.finish(2)
    ended = {}
    for fact in facts:
        if "weights" in fact:
            ended.setdefault((fact["generation"], fact["epoch"]), set()).add(fact["weights"])
    assert max(ended)[1] == 2
    assert all(len(weights) == 1 for weights in ended.values())
