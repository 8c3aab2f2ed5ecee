"""Elastic training, which is not there yet: see `horovod.common.elastic`."""

from horovod.common.elastic import Absent, run as run


class KerasState(Absent):
    """A state of a model and its optimizer."""


class CommitStateCallback(Absent):
    """A callback that commits the state every so many batches."""


class UpdateBatchStateCallback(Absent):
    """A callback that keeps the number of the batch in the state."""


class UpdateEpochStateCallback(Absent):
    """A callback that keeps the number of the epoch in the state."""
