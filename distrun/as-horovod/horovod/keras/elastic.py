"""Elastic training with Keras: see `distrun.keras.elastic`."""

from distrun.keras.elastic import (
    CommitStateCallback as CommitStateCallback,
    ElasticCallback as ElasticCallback,
    KerasState as KerasState,
    UpdateBatchStateCallback as UpdateBatchStateCallback,
    UpdateEpochStateCallback as UpdateEpochStateCallback,
    run as run,
)
