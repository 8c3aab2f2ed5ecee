"""Jobs of Azure Machine Learning that have the distribution PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from distrun.errors import UsageError
from distrun.host.clusters.place import HostPlace, number, text

# The second of two nodes, with `process_count_per_instance: 1`:
#   AZUREML_NODE_COUNT=2  NODE_RANK=1  MASTER_ADDR=10.0.0.4  MASTER_PORT=6105  AZUREML_RUN_ID=calm_rice_4kj2m
#   WORLD_SIZE=2  RANK=1  LOCAL_RANK=0
_NODES = "AZUREML_NODE_COUNT"
_INDEX = "NODE_RANK"
_ADDRESS = "MASTER_ADDR"
_RUN = "AZUREML_RUN_ID"
_NAME = "Azure ML"


def read(environ: Mapping[str, str]) -> HostPlace | None:
    """Return the place of this node, or None outside of Azure ML.

    Raises:
        UsageError: the job has several nodes, and no variable has the number of this one.
    """
    if _NODES not in environ:
        return None
    if (nodes := number(environ, _NODES, _NAME)) < 2:
        return HostPlace(_NAME, 0, 1, "", text(environ, _RUN, _NAME))
    if _INDEX not in environ:
        raise UsageError(
            f"Azure ML does not say which of the {nodes} nodes this is ({_INDEX} is not set): give the job "
            "distribution: {type: pytorch, process_count_per_instance: 1}"
        )
    index = number(environ, _INDEX, _NAME)
    return HostPlace(_NAME, index, nodes, text(environ, _ADDRESS, _NAME), text(environ, _RUN, _NAME))
