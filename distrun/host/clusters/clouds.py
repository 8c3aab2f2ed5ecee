"""The jobs of clouds' services for training: AWS Batch, Azure ML, SageMaker and Vertex AI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distrun.errors import UsageError
from distrun.host.clusters.place import HostPlace, number, parse, text

_SAGEMAKERS_FILE = Path("/opt/ml/input/config/resourceconfig.json")


# Node 1 of 2, as AWS's user guide ("Environment variables" of multi-node parallel jobs) describes them:
#   AWS_BATCH_JOB_ID=7b2e...-4f1c#1  AWS_BATCH_JOB_ATTEMPT=1  AWS_BATCH_JOB_NUM_NODES=2  AWS_BATCH_JOB_NODE_INDEX=1
#   AWS_BATCH_JOB_MAIN_NODE_INDEX=0  AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.12.7 (not on the main node)
def aws_batch(environ: Mapping[str, str]) -> HostPlace | None:
    """Return the place of this node, or None outside of multi-node parallel jobs."""
    if "AWS_BATCH_JOB_NUM_NODES" not in environ or "AWS_BATCH_JOB_NODE_INDEX" not in environ:
        return None
    index, main, nodes = (
        number(environ, f"AWS_BATCH_JOB_{name}", "AWS Batch") for name in ("NODE_INDEX", "MAIN_NODE_INDEX", "NUM_NODES")
    )
    # Any node may be the main one. Host 0 is the main node, so the nodes before it move up by one.
    place = 0 if index == main else index + (index < main)
    address = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
    leader = environ.get(address, "") if place == 0 else text(environ, address, "AWS Batch")
    job = text(environ, "AWS_BATCH_JOB_ID", "AWS Batch").partition("#")[0]
    return HostPlace("AWS Batch", place, nodes, leader, f"{job}.{environ.get('AWS_BATCH_JOB_ATTEMPT', '1')}")


# The second of two nodes, with `process_count_per_instance: 1`:
#   AZUREML_NODE_COUNT=2  NODE_RANK=1  MASTER_ADDR=10.0.0.4  MASTER_PORT=6105  AZUREML_RUN_ID=calm_rice_4kj2m
#   WORLD_SIZE=2  RANK=1  LOCAL_RANK=0
def azure_ml(environ: Mapping[str, str]) -> HostPlace | None:
    """Return the place of this node, or None outside of Azure ML.

    Raises:
        UsageError: the job has several nodes, and no variable has the number of this one.
    """
    if "AZUREML_NODE_COUNT" not in environ:
        return None
    if (nodes := number(environ, "AZUREML_NODE_COUNT", "Azure ML")) < 2:
        return HostPlace("Azure ML", 0, 1, "", text(environ, "AZUREML_RUN_ID", "Azure ML"))
    if "NODE_RANK" not in environ:
        raise UsageError(
            f"Azure ML does not say which of the {nodes} nodes this is (NODE_RANK is not set): give the job "
            "distribution: {type: pytorch, process_count_per_instance: 1}"
        )
    index, leader = number(environ, "NODE_RANK", "Azure ML"), text(environ, "MASTER_ADDR", "Azure ML")
    return HostPlace("Azure ML", index, nodes, leader, text(environ, "AZUREML_RUN_ID", "Azure ML"))


# SageMaker's training toolkit sets variables. A custom container only has the file, and the name of the job:
# SM_HOSTS=["algo-1","algo-2"] SM_CURRENT_HOST=algo-1 TRAINING_JOB_NAME=digits-2026-03-01-10-11-12-345 {"current_host":
# "algo-1", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0", ...}
def sagemaker(environ: Mapping[str, str], file: Path = _SAGEMAKERS_FILE) -> HostPlace | None:
    """Return the place of this instance, or None outside of SageMaker's training jobs.

    Raises:
        UsageError: the list of hosts is invalid, or this host is not in it.
    """
    if "SM_HOSTS" in environ and "SM_CURRENT_HOST" in environ:
        listed: Any = parse(environ["SM_HOSTS"], "SM_HOSTS", "SageMaker")
        here: Any = environ["SM_CURRENT_HOST"]
        source = f"SM_HOSTS={environ['SM_HOSTS']!r}"
    elif "TRAINING_JOB_NAME" in environ and file.is_file():
        config = parse(file.read_text(), str(file), "SageMaker")
        listed, here = (config.get("hosts"), config.get("current_host")) if isinstance(config, dict) else (None, None)
        source = f"{file}: {config!r}"
    else:
        return None
    if not isinstance(listed, list) or here not in listed or not all(isinstance(name, str) for name in listed):
        raise UsageError(f"{source} is not a list of hosts with this one ({here!r}) in it: let SageMaker set it")
    hosts = sorted(listed, key=_natural)
    job = f"{environ.get('TRAINING_JOB_NAME', '')}.{hosts[0]}"
    return HostPlace("SageMaker", hosts.index(here), len(hosts), hosts[0], job)


def _natural(name: str) -> list[Any]:
    """Return the sort key of `name`, which puts algo-2 before algo-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


# {"cluster": {"workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
#              "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"]},
#  "task": {"type": "workerpool1", "index": 0}, "environment": "cloud"}
def vertex_ai(environ: Mapping[str, str]) -> HostPlace | None:
    """Return the place of this replica, or None outside of Vertex AI. Replicas of workerpool0 are first.

    Raises:
        UsageError: the cluster's description is invalid.
    """
    given = environ.get("CLUSTER_SPEC")
    if given is None:
        return None
    spec = parse(given, "CLUSTER_SPEC", "Vertex AI")
    try:
        pools = {str(name): [str(replica) for replica in replicas] for name, replicas in spec["cluster"].items()}
        pool, index = str(spec["task"]["type"]), int(spec["task"]["index"])
        place = sum(len(pools[name]) for name in sorted(pools) if name < pool) + index
        leader = pools[min(pools)][0].rpartition(":")[0]
        is_there = 0 <= index < len(pools[pool])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        is_there = False
    if not is_there:
        raise UsageError(f"CLUSTER_SPEC={given[:200]!r} has no pools of workers with this task: let Vertex AI set it")
    return HostPlace("Vertex AI", place, sum(map(len, pools.values())), leader, leader)
