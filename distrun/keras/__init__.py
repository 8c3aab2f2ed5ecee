"""distrun for Keras: `import distrun.keras as hvd`, and a Horovod script runs.

    import distrun.keras as distrun

    distrun.init()
    optimizer = distrun.DistributedOptimizer(keras.optimizers.SGD(0.01 * distrun.size()))
    model.compile(optimizer, loss)
    model.fit(..., callbacks=[distrun.callbacks.BroadcastGlobalVariablesCallback(0)])

Each rank trains on its own part of the data, in as many steps as the others. Keras 3 runs on TensorFlow, JAX or torch.
Models and optimizers of Keras 2 (the package tf_keras) are recognised as such; everything else here uses Keras 2 if
TF_USE_LEGACY_KERAS=1 is set.
"""

from typing import TYPE_CHECKING

from distrun.exports import exported as _exported, later as _later
from distrun.keras import callbacks as callbacks
from distrun.keras.optimizer import (
    DistributedOptimizer as DistributedOptimizer,
    PartialDistributedOptimizer as PartialDistributedOptimizer,
    load_model as load_model,
)
from distrun.keras.ranks import init as init
from distrun.keras.values import *
from distrun.keras.variables import (
    broadcast_global_variables as broadcast_global_variables,
    broadcast_variables as broadcast_variables,
)
from distrun.runtime.collectives.compressors import Compression as Compression
from distrun.runtime.collectives.objects import *
from distrun.runtime.world.capabilities import *
from distrun.runtime.world.world import shutdown as shutdown
from distrun.shared_names import *

if TYPE_CHECKING:
    from distrun.graphs.error_feedback import ErrorFeedback as ErrorFeedback
    from distrun.keras.low_communication.asynchronous import AsyncOptimizer as AsyncOptimizer
    from distrun.keras.low_communication.diloco import DiLoCo as DiLoCo, LocalSGD as LocalSGD
    from distrun.methods.servers.coordinator import Coordinator as Coordinator
else:  # see `distrun.exports`
    __all__ = [*_exported(globals()), "callbacks"]
    __getattr__ = _later(
        __name__,
        AsyncOptimizer="distrun.keras.low_communication.asynchronous",
        Coordinator="distrun.methods.servers.coordinator",
        DiLoCo="distrun.keras.low_communication.diloco",
        ErrorFeedback="distrun.graphs.error_feedback",
        LocalSGD="distrun.keras.low_communication.diloco",
        elastic="distrun.keras.elastic",
    )
