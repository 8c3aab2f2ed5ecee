"""Elastic training, which is not there yet: see `horovod.common.elastic`."""

from horovod.keras.elastic import (
    CommitStateCallback as CommitStateCallback,
    KerasState as KerasState,
    UpdateBatchStateCallback as UpdateBatchStateCallback,
    UpdateEpochStateCallback as UpdateEpochStateCallback,
    run as run,
)
