"""Jitted steps go on with other ranks, although they are computed ahead when a rank is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from without_launcher.elastic_supervisor import Supervisor, python

pytest.importorskip("optax")

PROGRAM = Path(__file__).parent / "programs" / "elastic.py"

pytestmark = pytest.mark.feature_group("Elastic training")


@pytest.mark.gate
def test_steps_that_one_rank_has_compiled_go_on_with_two_and_with_the_other_alone(tmp_path):
    os.mkfifo(tmp_path / "go")
    variables = {"HOLD": "1:0:7 2:0:15", "DISTRUN_STALL_TIMEOUT": "200", "JAX_PLATFORMS": "cpu"}
    with Supervisor(python(PROGRAM), tmp_path, variables) as supervisor:
        coming = supervisor.change_all(tmp_path)
        (result,) = [fact for fact in coming.told() if "result" in fact]
    # The weights are what the sizes of all steps make them: the program has seen to that.
    assert result["step"] == 24
    assert result["sizes"] == [1] * 8 + [2] * 7 + [1] * 9
    assert result["traces"] == {"step": [2, 3], "rows": [2, 3]}  # a shape that holds the size has all made again
    assert result["looped"] == 24.0 * 1


def test_hosts_that_exchange_now_and_then_go_on_without_one_and_with_another(tmp_path):
    variables = {"HOLD": "1:1:20 2:0:12", "DISTRUN_STALL_TIMEOUT": "200", "JAX_PLATFORMS": "cpu"}
    with Supervisor(python(PROGRAM.with_name("diloco_elastic.py")), tmp_path, variables, hosts=2) as supervisor:
        supervisor.begin(2)
        supervisor.members[0].await_step(1, 15)
        supervisor.replace(1)
        supervisor.members[1].await_step(2, 5)
        supervisor.replace(0, newcomers=0)
        facts = supervisor.finish(1)
    for generation in (1, 2, 3):
        entered = [fact for fact in facts if fact["generation"] == generation and "entered" in fact]
        assert len({(fact["entered"], fact["at"]) for fact in entered}) == 1
