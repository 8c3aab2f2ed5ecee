"""Elastic training, which is not there yet: see `horovod.common.elastic`."""

from horovod.common.elastic import ObjectState, State, run as run


class KerasState(ObjectState):
    """A state of a model and its optimizer."""


class CommitStateCallback(State):
    """A callback that commits the state every so many batches."""


class UpdateBatchStateCallback(State):
    """A callback that keeps the number of the batch in the state."""


class UpdateEpochStateCallback(State):
    """A callback that keeps the number of the epoch in the state."""
