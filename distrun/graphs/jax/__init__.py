"""Collectives in the programs that JAX compiles, and on arrays outside of them.

`mechanism` chooses: on concrete arrays, a collective is executed at once (`arrays`). On traced arrays, it is put into
the program by a `primitive`, whose `handler` (on GPUs `cuda_handler`) XLA calls through its foreign function interface
(`ffi`), or, if that does not work, by a `callback`. Both use `shapes` and `derivatives`. `gradients` reduces the
gradients of a training step.
"""

from distrun.graphs.jax.gradients import reduce_gradients
from distrun.graphs.jax.mechanism import call

__all__ = ["call", "reduce_gradients"]
