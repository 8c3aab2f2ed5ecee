"""Elastic training with Keras: `fit` continues in the middle of its epoch when ranks come or go.

    state = elastic.KerasState(model)

    @elastic.run
    def train(state):
        model.fit(batches, epochs=10, callbacks=[elastic.ElasticCallback(state)])

    train(state)

The room: `state` has the state, and `training` its part for a model and an optimizer. `callbacks` has the callbacks,
Horovod's and distrun's. `resuming` continues a `fit` in the middle of an epoch, and `stages` is one list of callbacks
for several calls of `fit`.
"""

from distrun.elastic import (
    HostsUpdatedInterrupt as HostsUpdatedInterrupt,
    ObjectState as ObjectState,
    State as State,
    run as run,
)
from distrun.keras.elastic.callbacks import (
    CommitStateCallback as CommitStateCallback,
    ElasticCallback as ElasticCallback,
    UpdateBatchStateCallback as UpdateBatchStateCallback,
    UpdateEpochStateCallback as UpdateEpochStateCallback,
)
from distrun.keras.elastic.state import KerasState as KerasState

__all__ = [
    "CommitStateCallback",
    "ElasticCallback",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
