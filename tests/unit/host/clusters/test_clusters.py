"""Clusters that tell each container which of the job's hosts it is: their variables, as documented, in and a place
out."""

import json

import pytest

from distrun.errors import UsageError
from distrun.host.clusters import HostPlace, clouds, detect

BATCH = {
    "AWS_BATCH_JOB_ID": "7b2e1c3a-4f1c-4d0e-9a55-0c7f6d1b2a90#2",
    "AWS_BATCH_JOB_ATTEMPT": "1",
    "AWS_BATCH_JOB_NUM_NODES": "4",
    "AWS_BATCH_JOB_NODE_INDEX": "2",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.12.7",
}
BATCH_JOB = "7b2e1c3a-4f1c-4d0e-9a55-0c7f6d1b2a90.1"
AZURE = {
    "AZUREML_NODE_COUNT": "2",
    "AZUREML_RUN_ID": "calm_rice_4kj2m",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.4",
    "MASTER_PORT": "6105",
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
}
SAGEMAKER = {
    "SM_HOSTS": '["algo-1","algo-10","algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_NUM_GPUS": "8",
    "TRAINING_JOB_NAME": "digits-1",
}
LEADER = "cmle-training-workerpool0-ab-0"
SPEC = {
    "cluster": {
        "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
        "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
        "workerpool3": ["cmle-training-workerpool3-ab-0:2222"],
    },
    "environment": "cloud",
    "task": {"type": "workerpool1", "index": 1},
}


def vertex(**changes):
    return {"CLUSTER_SPEC": json.dumps({**SPEC, **changes})}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, None),
        (BATCH, HostPlace("AWS Batch", 2, 4, "10.0.12.7", BATCH_JOB)),
        ({**BATCH, "AWS_BATCH_JOB_MAIN_NODE_INDEX": "3"}, HostPlace("AWS Batch", 3, 4, "10.0.12.7", BATCH_JOB)),
        ({"AWS_BATCH_JOB_ID": "1", "AWS_BATCH_JOB_ARRAY_INDEX": "3"}, None),
        (AZURE, HostPlace("Azure ML", 1, 2, "10.0.0.4", "calm_rice_4kj2m")),
        ({"AZUREML_NODE_COUNT": "1", "AZUREML_RUN_ID": "x"}, HostPlace("Azure ML", 0, 1, "", "x")),
        (SAGEMAKER, HostPlace("SageMaker", 1, 3, "algo-1", "digits-1.algo-1")),
        ({"TRAINING_JOB_NAME": "on another machine"}, None),
        (vertex(), HostPlace("Vertex AI", 2, 4, *[LEADER] * 2)),
        (vertex(task={"type": "workerpool0", "index": 0}), HostPlace("Vertex AI", 0, 4, *[LEADER] * 2)),
    ],
)
def test_places(environ, place):
    assert detect(environ) == place


def test_the_main_node_of_aws_batch_is_host_0_and_needs_no_address():
    main = {name: value for name, value in BATCH.items() if "ADDRESS" not in name}
    places = []
    for index in range(4):
        variables = {"AWS_BATCH_JOB_NODE_INDEX": str(index), "AWS_BATCH_JOB_MAIN_NODE_INDEX": "2"}
        found = detect({**(main if index == 2 else BATCH), **variables})
        places.append(found.index)
    assert places == [1, 2, 0, 3]


def test_a_container_of_ones_own_on_sagemaker_finds_the_file(tmp_path):
    file = tmp_path / "resourceconfig.json"
    file.write_text('{"current_host": "algo-1", "hosts": ["algo-2", "algo-1"], "network_interface_name": "eth0"}')
    expected = HostPlace("SageMaker", 0, 2, "algo-1", "digits-1.algo-1")
    assert clouds.sagemaker({"TRAINING_JOB_NAME": "digits-1"}, file) == expected
    assert clouds.sagemaker({}, file) is None  # the file of another job, baked into an image


@pytest.mark.parametrize(
    ("environ", "complaint"),
    [
        ({**BATCH, "AWS_BATCH_JOB_NODE_INDEX": "x"}, "AWS_BATCH_JOB_NODE_INDEX='x' is not a whole number"),
        ({**BATCH, "AWS_BATCH_JOB_NUM_NODES": "2"}, "AWS Batch says that this is host 2 of 2"),
        ({**BATCH, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": ""}, "PRIVATE_IPV4_ADDRESS is not set"),
        ({"AZUREML_NODE_COUNT": "2"}, "does not say which of the 2 nodes this is .* process_count_per_instance: 1"),
        ({**SAGEMAKER, "SM_CURRENT_HOST": "algo-9"}, "is not a list of hosts with this one .'algo-9'. in it"),
        ({**SAGEMAKER, "SM_HOSTS": "algo-1"}, "SM_HOSTS='algo-1' is not JSON"),
        ({**SAGEMAKER, "SM_HOSTS": '["algo-2", 7]'}, "is not a list of hosts"),
        ({"CLUSTER_SPEC": "{}"}, "CLUSTER_SPEC='{}' has no pools of workers with this task"),
        (vertex(task={"type": "workerpool1", "index": 2}), "has no pools of workers with this task"),
        (vertex(task={"type": "workerpool7", "index": 0}), "has no pools of workers with this task"),
        (vertex(cluster={}), "has no pools of workers with this task"),
    ],
)
def test_variables_that_make_no_sense_are_told(environ, complaint):
    with pytest.raises(UsageError, match=complaint):
        detect(environ)
