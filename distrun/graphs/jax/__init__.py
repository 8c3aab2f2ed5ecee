"""Collectives in the programs that JAX makes."""

from distrun.graphs.jax.gradients import reduce_gradients
from distrun.graphs.jax.mechanism import call

__all__ = ["call", "reduce_gradients"]
