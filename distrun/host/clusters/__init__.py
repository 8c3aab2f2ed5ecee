"""The clusters that start the same container once per host, and tell each by variables which of the hosts it is.

One file per cluster. `detect` chooses one by the variables that are there, and gives the place of this host among those
of the job. The launcher asks it when it runs on every host (`distrun agent`), and so do ranks that are such a
container's only process. Variables are read, and one small file that SageMaker writes; nothing is asked over a network.
"""

from __future__ import annotations

from collections.abc import Mapping

from distrun.host.clusters.place import HostPlace

__all__ = ["HostPlace", "detect"]


def detect(environ: Mapping[str, str]) -> HostPlace | None:
    """Return the place of this host in the job of a cluster; None where no cluster is known by its variables.

    Raises:
        UsageError: a variable is missing or makes no sense.
    """
    # Imported here, as the ranks of a launcher never ask.
    from distrun.host.clusters import aws_batch, azure_ml, kubernetes, sagemaker, vertex_ai

    # A container has the variables of one of them only; but the others may run theirs in Kubernetes.
    readers = (aws_batch.read, azure_ml.read, sagemaker.read, vertex_ai.read, kubernetes.read)
    return next((place for read in readers if (place := read(environ)) is not None), None)
