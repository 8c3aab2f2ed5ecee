"""Elastic training, which is not there yet: see `horovod.common.elastic`."""

from horovod.common.elastic import ObjectState as ObjectState, State as State, run as run


class TensorFlowState(ObjectState):
    """A state of variables."""


class TensorFlowKerasState(ObjectState):
    """A state of a Keras model and its optimizer."""
