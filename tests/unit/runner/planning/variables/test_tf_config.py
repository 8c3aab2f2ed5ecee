"""TF_CONFIG for every rank."""

import json

import pytest

from distrun.errors import UsageError
from distrun.runner.planning.variables.tf_config import check, servers, values

PLACES = ["a:1", "a:2", "b:1", "[fd00::1]:2"]


def test_all_ranks_are_workers():
    made = [json.loads(value) for value in values(PLACES)]
    assert [config["task"] for config in made] == [{"type": "worker", "index": rank} for rank in range(4)]
    assert all(config["cluster"] == {"worker": PLACES} for config in made)
    assert servers(4, 0) == frozenset()


def test_parameter_servers_come_first_then_the_chief_then_workers():
    made = [json.loads(value) for value in values(PLACES, ps=1)]
    assert [(config["task"]["type"], config["task"]["index"]) for config in made] == [
        ("ps", 0),
        ("chief", 0),
        ("worker", 0),
        ("worker", 1),
    ]
    assert made[0]["cluster"] == {"ps": PLACES[:1], "chief": PLACES[1:2], "worker": PLACES[2:]}
    assert servers(4, 1) == {0, 2, 3}


def test_a_chief_and_a_worker_must_be_left():
    check(4, 2)
    check(1, 0)
    with pytest.raises(
        UsageError, match=r"--ps 3 of 4 ranks does not leave a chief and a worker: give at least 5 ranks"
    ):
        check(4, 3)
