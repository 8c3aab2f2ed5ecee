"""Elastic training with TensorFlow: see `distrun.tensorflow.elastic`."""

from distrun.elastic.loop import run_fn as run_fn
from distrun.tensorflow.elastic import (
    ObjectState as ObjectState,
    State as State,
    TensorFlowState as TensorFlowState,
    run as run,
)


def __getattr__(name: str) -> object:
    if name != "TensorFlowKerasState":
        raise AttributeError(f"module 'horovod.tensorflow.elastic' has no attribute {name!r}")
    import distrun.tensorflow.elastic

    return distrun.tensorflow.elastic.TensorFlowKerasState  # not at the top: it loads Keras
