"""Traced functions outlive the ranks that they were traced for; states of variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tensorflow as tf
from without_launcher.elastic_supervisor import Supervisor, python

from distrun.elastic.graphs import GraphState

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.feature_group("Elastic training")


@pytest.mark.gate
def test_a_function_that_one_rank_has_traced_goes_on_with_two_and_with_the_other_alone(tmp_path):
    os.mkfifo(tmp_path / "go")
    variables = {"HOLD": "1:0:7 2:0:15", "DISTRUN_STALL_TIMEOUT": "200", "TF_CPP_MIN_LOG_LEVEL": "3"}
    with Supervisor(python(PROGRAMS / "elastic.py"), tmp_path, variables) as supervisor:
        coming = supervisor.change_all(tmp_path)
        steps = [(fact["step"], fact["size"]) for fact in coming.told() if "step" in fact]
        made = [(fact["step"], fact["size"]) for fact in supervisor.processes[0].told() if "step" in fact]
    assert [step for step, _ in made] == list(range(1, 16))
    assert [step for step, _ in steps] == list(range(9, 25))
    assert [size for _, size in steps] == [2] * 7 + [1] * 9
    (result,) = [fact for fact in coming.told() if "result" in fact]
    assert result["count"] == 24
    assert result["traces"] == [2]


@pytest.mark.gate
def test_errors_of_the_user_are_not_taken_for_the_loss_of_a_rank():
    state = GraphState()
    assert not state.is_abort(tf.errors.UnknownError(None, None, "a disk is full"))
    assert not state.is_abort(KeyError("JobAbortedError: not ours"))
    said = "Graph execution error:\n\nJobAbortedError: rank 1 is gone\n [[{{node}}]]"
    lost = tf.errors.UnknownError(None, None, said)
    assert state.is_abort(lost)
    assert state.reason_of(lost) == "rank 1 is gone"
