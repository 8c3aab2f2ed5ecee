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

from distrun.exports import exported as _exported
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

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = [*_exported(globals()), "SyncBatchNormalization"]


def __getattr__(name: str) -> object:
    if name == "elastic":
        import distrun.tensorflow.elastic as elastic  # not before: most jobs are not

        return elastic
    if name == "ErrorFeedback":
        from distrun.graphs.error_feedback import ErrorFeedback

        return ErrorFeedback
    if name != "SyncBatchNormalization":
        raise AttributeError(f"module 'distrun.tensorflow' has no attribute {name!r}")
    from distrun.tensorflow.normalization import SyncBatchNormalization  # not before: it loads Keras

    return SyncBatchNormalization
