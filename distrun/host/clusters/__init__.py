"""Clusters that start the same container once per host, with environment variables that identify the host.

`clouds` and `kubernetes` read their variables. `detect` chooses the cluster by the variables that are set, and returns
the place of this host in the job. The launcher calls it when it runs on every host (`distrun agent`), and so do ranks
that are the only process of such a container. It only reads variables, and one small file that SageMaker writes, and
uses no network.
"""

from __future__ import annotations

from collections.abc import Mapping

from distrun.host.clusters.place import HostPlace

__all__ = ["HostPlace", "detect"]


def detect(environ: Mapping[str, str]) -> HostPlace | None:
    """Return the place of this host in a cluster's job, or None if the variables are not of a known cluster.

    Raises:
        UsageError: a variable is missing or invalid.
    """
    # Imported here, since ranks that a launcher starts never need them.
    from distrun.host.clusters import clouds, kubernetes

    # Kubernetes is last, since the other clusters may run their containers in it.
    readers = (clouds.aws_batch, clouds.azure_ml, clouds.sagemaker, clouds.vertex_ai, kubernetes.read)
    return next((place for read in readers if (place := read(environ)) is not None), None)
