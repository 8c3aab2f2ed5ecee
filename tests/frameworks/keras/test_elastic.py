"""`fit` goes on inside its epoch when ranks are killed, come and go, on each backend and with either Keras."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from without_launcher.elastic_supervisor import DEADLINE, Supervisor, Waiting, python

PROGRAMS = Path(__file__).parent / "programs"
EPOCHS, STEPS = 3, 12

pytestmark = [
    pytest.mark.feature_group("Elastic training"),
    pytest.mark.backends("tensorflow", "jax", "torch", "tf_keras"),
]


@pytest.fixture(scope="module")
def job(backend: str, tmp_path_factory: pytest.TempPathFactory, rank_environment):
    """A job in which a rank is killed and replaced, another one comes, and rank 0 is killed."""
    pytest.importorskip(backend)
    folder: Path = tmp_path_factory.mktemp("elastic")
    os.mkfifo(folder / "go")
    variables = rank_environment(
        backend, HOLD="1:1:0:7 2:0:1:3 3:0:1:9", DISTRUN_STALL_TIMEOUT="200", TMPDIR=str(folder)
    )
    with Supervisor(python(PROGRAMS / "elastic.py"), folder, variables) as supervisor:
        supervisor.begin(2)
        coming = supervisor.start(2, 3)
        supervisor.members[1].await_hold(1)
        supervisor.replace(1)
        supervisor.members[0].await_hold(2)
        supervisor.await_message(coming, Waiting)
        supervisor.prepare("a host has come")
        (folder / "go").write_text("")
        for member in supervisor.members:
            _await_waiting(supervisor, member, 2)
        supervisor.assign([*supervisor.members, coming])
        supervisor.members[0].await_hold(3)
        supervisor.replace(0, newcomers=0)
        supervisor.finish(2)
        yield supervisor


def _await_waiting(supervisor, member, generation):
    """Wait until a member has left a generation."""
    while (said := supervisor.await_message(member, Waiting)).generation != generation:
        assert re.search(" (was killed by SIGKILL|is gone)", said.reason)  # by when it was collected
        assert "\n" not in said.reason


def _results(job):
    return [fact for member in job.members for fact in member.told() if "result" in fact]


@pytest.mark.gate
def test_all_ranks_end_with_the_same_weights_and_the_same_state_of_the_optimizer(job):
    results = _results(job)
    assert len(results) == 2
    assert {digest for result in results for digest in result["weights"]} == {results[0]["weights"][0]}
    assert {digest for result in results for digest in result["slots"]} == {results[0]["slots"][0]}


@pytest.mark.gate
def test_each_step_is_made_once_and_callbacks_count_on(job):
    assert [result["iterations"] for result in _results(job)] == [EPOCHS * STEPS] * 2
    assert job.steps_made(first=0) == EPOCHS * STEPS


@pytest.mark.gate
def test_the_history_has_all_epochs_on_newcomers_too(job):
    for result in _results(job):
        assert result["epochs"] == list(range(EPOCHS))
        assert result["losses"] == EPOCHS


@pytest.mark.gate
def test_the_learning_rate_goes_by_the_present_size(job):
    rates = [
        (fact["generation"], round(fact["rate"], 6))
        for process in job.processes
        for fact in process.told()
        if "begin" in fact and fact["generation"] > 2  # before, the rate rises
    ]
    assert sorted(rates) == [(3, 0.03)] * 3 + [(4, 0.02)] * 2


@pytest.mark.parametrize(
    ("who", "library", "deaths"),
    [("fit", "torch", "1:1:1:5"), ("state", "jax", "1:0:1:0 2:1:1:7"), ("state", "torch", "1:2:0:3 2:0:1:11")],
)
def test_each_sample_is_taken_once_in_an_epoch(tmp_path, rank_environment, who, library, deaths):
    """One of three ranks is killed and not replaced, and then another one is killed and replaced."""
    pytest.importorskip(library)
    program = python(PROGRAMS / "elastic_data.py", who)
    with Supervisor(program, tmp_path, rank_environment(library, DIE=deaths)) as supervisor:
        supervisor.begin(3)
        for newcomers, death in enumerate(deaths.split()):
            rank = int(death.split(":")[1])
            supervisor.members[rank].popen.wait(DEADLINE)
            supervisor.replace(rank, newcomers)
        supervisor.finish(2)
        results = [fact for member in supervisor.members for fact in member.told() if "result" in fact]
    assert [result["result"] for result in results] == [[3.0] * 96] * 2
    assert [(result["epochs"], result["size"]) for result in results] == [([0, 1, 2], 2)] * 2


def test_callbacks_of_horovod_refuse_data_that_the_state_keeps():
    code = """
import keras, numpy as np
import distrun.keras as dt
from distrun.data import shard
from distrun.errors import UsageError
dt.init()
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile(dt.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
state = dt.elastic.KerasState(model, batches=shard((np.ones((8, 2)), np.ones((8, 1))), batch_size=2))
commit = dt.elastic.CommitStateCallback(state)
try:
    model.fit(state.batches, epochs=2, verbose=0, callbacks=[commit])
except UsageError as error:
    assert "inside an epoch of state.batches: use ElasticCallback(state)" in str(error), error
else:
    raise SystemExit("not refused")
model.fit(shard((np.ones((8, 2)), np.ones((8, 1))), batch_size=2), verbose=0, callbacks=[commit])
"""
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "KERAS_BACKEND": "torch"}, timeout=240)
