"""Elastic training, which is not there yet: see `horovod.common.elastic`."""

from horovod.common.elastic import Absent, ObjectState as ObjectState, State as State, run as run


class TensorFlowState(Absent):
    """A state of variables."""


class TensorFlowKerasState(Absent):
    """A state of a Keras model and its optimizer."""
