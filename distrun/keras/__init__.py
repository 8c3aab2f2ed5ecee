"""distrun for Keras 3, on TensorFlow, JAX or torch: `import distrun.keras as hvd`, and a Horovod script runs.

    import distrun.keras as distrun

    distrun.init()
    optimizer = distrun.DistributedOptimizer(keras.optimizers.SGD(0.01 * distrun.size()))
    model.compile(optimizer, loss)
    model.fit(..., callbacks=[distrun.callbacks.BroadcastGlobalVariablesCallback(0)])

Each rank trains on its own part of the data, in as many steps as the others.
"""

from typing import TYPE_CHECKING

from distrun.exports import exported as _exported
from distrun.graphs.compression import Compression as Compression
from distrun.keras import callbacks as callbacks, fitting as _fitting
from distrun.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from distrun.keras.ranks import init as init
from distrun.keras.saving import load_model as load_model
from distrun.keras.values import *
from distrun.keras.variables import (
    broadcast_global_variables as broadcast_global_variables,
    broadcast_variables as broadcast_variables,
)
from distrun.runtime.capabilities import *
from distrun.runtime.collectives.objects import *
from distrun.runtime.shared_names import *
from distrun.runtime.world import shutdown as shutdown

_fitting.take_part()

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = [*_exported(globals()), "callbacks"]
