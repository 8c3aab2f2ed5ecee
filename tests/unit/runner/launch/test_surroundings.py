"""The place of a host, from what cluster managers set; the samples are theirs."""

import socket

import pytest

from distrun.errors import UsageError
from distrun.runner.launch.surroundings import Surroundings, read_surroundings

NOTHING = {"nnodes": None, "node_rank": None, "rdzv_endpoint": None}
IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
OURS = {"DISTRUN_HOSTS": "4", "JOB_COMPLETION_INDEX": "2"}
TRAIN_JOB = {
    "JOB_COMPLETION_INDEX": "1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "mnist-node-0-0.mnist",
    "PET_MASTER_PORT": "29400",
}
PYTORCH_JOB = {
    "PYTHONUNBUFFERED": "1",
    "MASTER_PORT": "23456",
    "PET_MASTER_PORT": "23456",
    "MASTER_ADDR": "mnist-master-0",
    "PET_MASTER_ADDR": "mnist-master-0",
    "WORLD_SIZE": "6",
    "RANK": "1",
    "PET_NPROC_PER_NODE": "2",
    "PET_NODE_RANK": "1",
    "PET_NNODES": "3",
}
OLD_PYTORCH_JOB = {"MASTER_PORT": "23456", "MASTER_ADDR": "mnist-master-0", "WORLD_SIZE": "3", "RANK": "2"} | IN_POD
JOBSET = {
    "DISTRUN_HOSTS": "4",
    "JOB_COMPLETION_INDEX": "1",
    "JOBSET_NAME": "set",
    "REPLICATED_JOB_NAME": "worker",
    "REPLICATED_JOB_REPLICAS": "2",
    "JOB_INDEX": "1",
}


@pytest.mark.parametrize(
    ("environ", "hostname", "place"),
    [
        (OURS, "train-2", Surroundings(2, 4, ("train-0.train", 29400))),
        (OURS, "my-train-2.my-train.ns.svc.cluster.local", Surroundings(2, 4, ("my-train-0.my-train", 29400))),
        (
            {**OURS, "DISTRUN_ENDPOINT": "10.0.0.7:4711", "DISTRUN_SLOTS": "8"},
            "x",
            Surroundings(2, 4, ("10.0.0.7", 4711), 8),
        ),
        (TRAIN_JOB, "mnist-node-0-1", Surroundings(1, 2, ("mnist-node-0-0.mnist", 29400))),
        (PYTORCH_JOB, "mnist-worker-0", Surroundings(1, 3, ("mnist-master-0", 23456), 2)),
        (OLD_PYTORCH_JOB, "mnist-worker-1", Surroundings(2, 3, ("mnist-master-0", 23456))),
        (JOBSET, "set-worker-1-1", Surroundings(3, 4, ("set-worker-0-0.set", 29400))),
        ({"DISTRUN_HOSTS": "1"}, "laptop", Surroundings(0, 1, ("localhost", 29400))),
    ],
)
def test_the_place_is_read_from_the_variables_of_each_manager(environ, hostname, place, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: hostname)
    assert read_surroundings(NOTHING, environ) == place


def test_the_command_line_wins():
    given = {"nnodes": "3", "node_rank": 1, "rdzv_endpoint": "[fd00::1]:5000"}
    assert read_surroundings(given, TRAIN_JOB) == Surroundings(1, 3, ("fd00::1", 5000))


@pytest.mark.parametrize(
    ("environ", "hostname", "said"),
    [
        ({}, "x-0", "nobody says how many hosts the job has and which this is"),
        ({"DISTRUN_HOSTS": "two"}, "x-0", "DISTRUN_HOSTS='two' is not a whole number >= 0"),
        ({"DISTRUN_HOSTS": "0"}, "x-0", "0 hosts are too few"),
        ({"DISTRUN_HOSTS": "2"}, "x-0", "nobody says which of the 2 hosts this is"),
        ({"DISTRUN_HOSTS": "2", "JOB_COMPLETION_INDEX": "2"}, "x-2", "Kubernetes says that this is host 2 of 2"),
        (OURS, "pod", "nobody says where host 0 is, and this host's name 'pod' does not end with a number"),
        ({**OURS, "DISTRUN_ENDPOINT": "a:port"}, "x", "'a:port' is no place where host 0 listens"),
        ({**OURS, "DISTRUN_SLOTS": "0"}, "x-2", "DISTRUN_SLOTS='0' is no number of ranks"),
    ],
)
def test_what_is_missing_or_impossible_is_refused_with_the_remedy(environ, hostname, said, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: hostname)
    with pytest.raises(UsageError) as error:
        read_surroundings(NOTHING, environ)
    assert str(error.value).startswith(said)
