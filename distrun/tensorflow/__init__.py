"""distrun for TensorFlow: `import distrun.tensorflow as hvd`, and a Horovod script runs.

    import distrun.tensorflow as distrun

    distrun.init()
    with tf.GradientTape() as tape:
        ...
    tape = distrun.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    distrun.broadcast_variables(model.variables, root_rank=0)  # before the first step

Each rank trains on its own part of the data, and all have the same gradients. For `model.fit` see `distrun.keras`.
"""

from typing import TYPE_CHECKING

from distrun.exports import exported as _exported, later as _later
from distrun.runtime.collectives.compressors import Compression as Compression
from distrun.runtime.world.capabilities import *
from distrun.runtime.world.world import shutdown as shutdown
from distrun.shared_names import *
from distrun.tensorflow.collectives import *
from distrun.tensorflow.optimizer import DistributedOptimizer as DistributedOptimizer
from distrun.tensorflow.ranks import *
from distrun.tensorflow.state import *
from distrun.tensorflow.tape import (
    DistributedGradientTape as DistributedGradientTape,
    PartialDistributedGradientTape as PartialDistributedGradientTape,
)

if TYPE_CHECKING:
    from distrun.graphs.error_feedback import ErrorFeedback as ErrorFeedback
    from distrun.tensorflow.normalization import SyncBatchNormalization as SyncBatchNormalization
else:  # see `distrun.exports`
    __all__ = [*_exported(globals()), "SyncBatchNormalization"]
    __getattr__ = _later(
        __name__,
        ErrorFeedback="distrun.graphs.error_feedback",
        SyncBatchNormalization="distrun.tensorflow.normalization",  # loads Keras
        elastic="distrun.tensorflow.elastic",
    )
