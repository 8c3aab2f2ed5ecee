"""Multi-node parallel jobs of AWS Batch."""

from __future__ import annotations

from collections.abc import Mapping

from distrun.host.clusters.place import HostPlace, number, text

# Node 1 of 2, as AWS's user guide ("Environment variables" of multi-node parallel jobs) describes them:
#   AWS_BATCH_JOB_ID=7b2e...-4f1c#1  AWS_BATCH_JOB_ATTEMPT=1  AWS_BATCH_JOB_NUM_NODES=2  AWS_BATCH_JOB_NODE_INDEX=1
#   AWS_BATCH_JOB_MAIN_NODE_INDEX=0  AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.12.7 (not on the main node)
_JOB = "AWS_BATCH_JOB_ID"
_ATTEMPT = "AWS_BATCH_JOB_ATTEMPT"
_NODES = "AWS_BATCH_JOB_NUM_NODES"
_INDEX = "AWS_BATCH_JOB_NODE_INDEX"
_MAIN = "AWS_BATCH_JOB_MAIN_NODE_INDEX"
_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
_NAME = "AWS Batch"


def read(environ: Mapping[str, str]) -> HostPlace | None:
    """Return the place of this node, or None outside of multi-node parallel jobs."""
    if _NODES not in environ or _INDEX not in environ:
        return None
    index, main = number(environ, _INDEX, _NAME), number(environ, _MAIN, _NAME)
    # Any node may be the main one. Host 0 is the main node, so the nodes before it move up by one.
    place = 0 if index == main else index + (index < main)
    leader = environ.get(_ADDRESS, "") if place == 0 else text(environ, _ADDRESS, _NAME)
    job = f"{text(environ, _JOB, _NAME).partition('#')[0]}.{environ.get(_ATTEMPT, '1')}"
    return HostPlace(_NAME, place, number(environ, _NODES, _NAME), leader, job)
