"""Collectives in the programs that JAX compiles, and on arrays outside of them.

`mechanism` decides: concrete arrays are executed at once (`arrays`); traced ones go into the program, through a
`primitive` whose `handler` XLA calls by its foreign function interface (`ffi`) or, where that does not work, through a
`callback`. `shapes` and `derivatives` serve both; `gradients` reduces the leaves of a training step.
"""

from distrun.graphs.jax.gradients import reduce_gradients
from distrun.graphs.jax.mechanism import call

__all__ = ["call", "reduce_gradients"]
