"""distrun for JAX and optax: `import distrun.jax as distrun`.

    import distrun.jax as distrun

    distrun.init()
    params, state = distrun.broadcast_parameters((params, state), root_rank=0)
    optimizer = distrun.DistributedOptimizer(optax.adam(1e-3 * distrun.size()))  # its update averages the gradients

    @jax.jit
    def step(params, state, images, labels): ...  # as before

Each rank is a process with its own devices, and trains on its own part of the data. `jax.distributed` is not needed. To
start it with these ranks, call `initialize()`.
"""

from typing import TYPE_CHECKING

from distrun.exports import exported as _exported, later as _later
from distrun.jax.collectives import *
from distrun.jax.gradients import grad as grad, value_and_grad as value_and_grad
from distrun.jax.ranks import init as init, initialize as initialize, shutdown as shutdown
from distrun.jax.state import broadcast_parameters as broadcast_parameters
from distrun.runtime.collectives.compressors import Compression as Compression
from distrun.runtime.collectives.objects import *
from distrun.shared_names import *

if TYPE_CHECKING:
    from distrun.graphs.error_feedback import ErrorFeedback as ErrorFeedback
    from distrun.jax.diloco import DiLoCo as DiLoCo, LocalSGD as LocalSGD
    from distrun.jax.optimizer import DistributedOptimizer as DistributedOptimizer
else:  # see `distrun.exports`
    __all__ = [*_exported(globals()), "DistributedOptimizer"]
    __getattr__ = _later(
        __name__,
        DiLoCo="distrun.jax.diloco",
        DistributedOptimizer="distrun.jax.optimizer",  # needs optax, and the rest does not
        ErrorFeedback="distrun.graphs.error_feedback",
        LocalSGD="distrun.jax.diloco",
        elastic="distrun.jax.elastic",
    )
