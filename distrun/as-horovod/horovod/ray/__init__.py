"""Horovod's executor for Ray: `RayExecutor` is `distrun.ray.Executor`, whose workers import this package too."""

from distrun.errors import NotOfferedError
from distrun.ray import Executor as RayExecutor

__all__ = ["RayExecutor"]


def __getattr__(name: str) -> object:
    if name in ("ElasticRayExecutor", "RayHostDiscovery", "BaseHorovodWorker"):
        raise NotOfferedError(
            f"horovod.ray.{name}: the workers of an executor on Ray neither come nor go: use RayExecutor, or start an "
            "elastic job with distrun --horovod --elastic"
        )
    raise AttributeError(f"module 'horovod.ray' has no attribute {name!r}")
