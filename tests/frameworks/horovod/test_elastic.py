"""Scripts for Horovod's elastic training with TensorFlow and Keras run unchanged while ranks are killed under them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from without_launcher.elastic_supervisor import DEADLINE, Supervisor, python

from distrun.contract import horovod

pytest.importorskip("tensorflow")

SCRIPTS = Path(__file__).parent / "scripts"
HOROVOD = {"DISTRUN_HOROVOD": "1", "PYTHONPATH": horovod.FOLDER}

pytestmark = pytest.mark.feature_group("Elastic training")


def test_a_session_of_tensorflow_1_goes_back_to_its_commit_or_loses_nothing(tmp_path):
    environ = {**HOROVOD, "DISTRUN_STALL_TIMEOUT": "200", "TF_CPP_MIN_LOG_LEVEL": "3", "DIE": "1:2:6:1 2:1:10:0"}
    with Supervisor(python(SCRIPTS / "elastic_session.py"), tmp_path, environ) as supervisor:
        supervisor.begin(3)
        supervisor.members[2].popen.wait(DEADLINE)  # half a step and two whole ones behind the last commit
        supervisor.replace(2)
        supervisor.members[1].popen.wait(DEADLINE)  # between two steps, where boundaries are marked
        supervisor.replace(1, newcomers=0)
        supervisor.finish(2)
        results = [fact["agree"] for member in supervisor.members for fact in member.told() if "result" in fact]
        first = supervisor.members[0].told()
    # The weights are what these steps make them: the script has seen to that.
    assert results == [True, True]
    made = {number: [fact["batch"] for fact in first if fact.get("generation") == number] for number in (1, 2)}
    assert made == {1: [0, 1, 2, 3, 4, 5], 2: [4, 5, 6, 7, 8, 9]}
    assert [fact["batch"] for fact in first if fact["generation"] == 3 and "batch" in fact] == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("module", "keras", "deaths", "batches_per_commit", "more"),
    [
        ("horovod.tensorflow.keras", {"KERAS_BACKEND": "tensorflow"}, "1:1:1:3 2:0:2:1", 1, ["step"]),
        ("horovod.keras", {"KERAS_BACKEND": "jax"}, "1:1:1:6", 5, []),
    ],
    ids=["tensorflow, with a step before", "jax"],
)
def test_callbacks_of_horovod_go_on_from_the_last_commit(tmp_path, module, keras, deaths, batches_per_commit, more):
    pytest.importorskip(keras["KERAS_BACKEND"])
    command = python(SCRIPTS / "elastic_keras.py", module, str(batches_per_commit), *more)
    quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "DISTRUN_STALL_TIMEOUT": "200", "DIE": deaths}
    done = subprocess.run(
        [sys.executable, "-m", "distrun.runner", "--horovod", "--elastic", "-np", "2", *command],
        env={**os.environ, **quiet, **keras},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    facts = [json.loads(found) for found in re.findall(r'\{"generation".*?\}', done.stdout)]
    dead = [int(death.split(":")[1]) for death in deaths.split()]
    made = 0
    for generation, survivor in enumerate([*(1 - rank for rank in dead), 0], 1):
        told = [fact for fact in facts if fact["generation"] == generation]
        # Ranks begin with the updates of the last commit, and in an epoch that is done by none of them.
        begin = made // batches_per_commit * batches_per_commit + len(more)
        assert [(fact["begin"], fact["epoch"]) for fact in told if "begin" in fact] == [(begin, generation - 1)] * 2
        batches = [fact for fact in told if "batch" in fact and fact["rank"] == survivor]
        assert [fact["noted"] for fact in batches] == [fact["batch"] for fact in batches]
        made = begin + len(batches)
    results = [(fact["result"], fact["agree"]) for fact in facts if "result" in fact]
    assert results == [([made, 4, 0, pytest.approx(0.02)], True)] * 2
