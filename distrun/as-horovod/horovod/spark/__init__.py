"""Horovod's runner for Spark: `run` is `distrun.spark.run`, whose ranks import this package too."""

from distrun.errors import NotOfferedError
from distrun.spark import run

__all__ = ["run"]


def __getattr__(name: str) -> object:
    if name == "run_elastic":
        raise NotOfferedError("horovod.spark.run_elastic: ranks on Spark neither come nor go: use horovod.spark.run")
    if name in ("TorchEstimator", "KerasEstimator"):
        raise NotOfferedError(
            f"horovod.spark.{name}: there are no estimators; examples/spark_digits.py does their work"
        )
    raise AttributeError(f"module 'horovod.spark' has no attribute {name!r}")
