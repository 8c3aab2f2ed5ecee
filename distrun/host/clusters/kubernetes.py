"""Pods of Kubernetes: indexed jobs, JobSet, and the jobs of Kubeflow."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from distrun.errors import UsageError
from distrun.host.clusters.place import HostPlace, number

HOSTS, ENDPOINT, SLOTS = "DISTRUN_HOSTS", "DISTRUN_ENDPOINT", "DISTRUN_SLOTS"
"""The variables for the number of a job's hosts, the endpoint of host 0, and the number of ranks on a host."""

NAME = "Kubernetes"
"""The cluster's name in messages."""

# An Indexed Job:    JOB_COMPLETION_INDEX=1, and the pod's host name is train-1; how many there are it does not say, so
#                    DISTRUN_HOSTS=4 must. Host 0 is train-0 in the headless service train, or DISTRUN_ENDPOINT says so.
INDEX = "JOB_COMPLETION_INDEX"
_OWN_NAME = re.compile(r"(?P<job>.+)-\d+")
# JobSet:            the same with names like set-worker-0-1, and where the job's author maps its annotations
#                    JOBSET_NAME=set REPLICATED_JOB_NAME=worker REPLICATED_JOB_REPLICAS=2 JOB_INDEX=0
_JOBSET, _REPLICATED_JOB, _REPLICAS, _JOB_INDEX = (
    "JOBSET_NAME",
    "REPLICATED_JOB_NAME",
    "REPLICATED_JOB_REPLICAS",
    "JOB_INDEX",
)
# Kubeflow Trainer:  PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=job-node-0-0.job
#                    PET_MASTER_PORT=29400
# A PyTorchJob:      the same, and MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=2 RANK=1; the operator before
#                    version 1.7 gave these four only, and RANK counts pods
_NODES, _NODE_RANK = "PET_NNODES", "PET_NODE_RANK"
_RANK, _SIZE = "RANK", "WORLD_SIZE"
_IN_POD = "KUBERNETES_SERVICE_HOST"


def read(environ: Mapping[str, str]) -> HostPlace | None:
    """Return the place of this pod, or None if no variable has the number of pods.

    Raises:
        UsageError: a variable is missing or invalid.
    """
    if environ.get(HOSTS):
        hosts = number(environ, HOSTS, NAME)
        index = _index(environ, hosts) if hosts else 0
    elif environ.get(_NODES) and environ.get(_NODE_RANK):
        if not environ[_NODES].isdecimal():  # 1:4, of an elastic PyTorchJob: only torchrun knows the number
            return None
        hosts, index = number(environ, _NODES, "Kubeflow"), number(environ, _NODE_RANK, "Kubeflow")
    elif _has_rank_per_pod(environ):
        hosts, index = number(environ, _SIZE, "Kubeflow"), number(environ, _RANK, "Kubeflow")
    else:
        return None
    if hosts < 1:
        raise UsageError(f"{hosts} hosts are too few: set {HOSTS} to the number of pods, 1 or more")
    leader = "" if hosts == 1 else endpoint(environ)
    return HostPlace(NAME, index, hosts, host_of(leader), leader)


def endpoint(environ: Mapping[str, str]) -> str:
    """Return the endpoint of host 0, as HOST or HOST:PORT.

    Raises:
        UsageError: it cannot be found from the variables or the host name.
    """
    if environ.get(ENDPOINT):
        return environ[ENDPOINT]
    for prefix in ("PET_", ""):
        address, port = environ.get(f"{prefix}MASTER_ADDR"), environ.get(f"{prefix}MASTER_PORT")
        if address:
            return f"{address}:{port}" if port and ":" not in address else address
    if environ.get(_JOBSET) and environ.get(_REPLICATED_JOB):
        return f"{environ[_JOBSET]}-{environ[_REPLICATED_JOB]}-0-0.{environ[_JOBSET]}"
    name = socket.gethostname()
    if (match := _OWN_NAME.fullmatch(name.partition(".")[0])) is None:
        raise UsageError(
            f"nobody says where host 0 is, and this host's name {name!r} does not end with a number, as those of an "
            f"Indexed Job do: set {ENDPOINT} to HOST or HOST:PORT"
        )
    return f"{match['job']}-0.{match['job']}"


def host_of(endpoint_text: str) -> str:
    """Return the host name or address in `HOST`, `HOST:PORT`, `[IPV6]:PORT` or `IPV6`."""
    if endpoint_text.startswith("["):
        return endpoint_text[1:].partition("]")[0]
    return endpoint_text.partition(":")[0] if endpoint_text.count(":") == 1 else endpoint_text


def slots(environ: Mapping[str, str]) -> str:
    """Return the number of ranks on this pod, as text: a number, auto, cpu or gpu."""
    return environ.get(SLOTS) or environ.get("PET_NPROC_PER_NODE") or "auto"


def _index(environ: Mapping[str, str], hosts: int) -> int:
    if environ.get(INDEX):
        index = number(environ, INDEX, NAME)
        if not environ.get(_JOB_INDEX) or not environ.get(_REPLICAS):
            return index
        # All jobs of a replicated job have the same number of pods.
        per_job = hosts // max(1, number(environ, _REPLICAS, "JobSet"))
        return number(environ, _JOB_INDEX, "JobSet") * per_job + index
    if environ.get(_NODE_RANK):
        return number(environ, _NODE_RANK, "Kubeflow")
    if _has_rank_per_pod(environ):
        return number(environ, _RANK, "Kubeflow")
    if hosts == 1:
        return 0
    raise UsageError(
        f"nobody says which of the {hosts} hosts this is: neither {INDEX} of an Indexed Job nor {_NODE_RANK} is set"
    )


def _has_rank_per_pod(environ: Mapping[str, str]) -> bool:
    """Return whether RANK and WORLD_SIZE count pods, as with the first PyTorchJob operators."""
    return _IN_POD in environ and bool(environ.get(_RANK) and environ.get(_SIZE)) and "LOCAL_RANK" not in environ
