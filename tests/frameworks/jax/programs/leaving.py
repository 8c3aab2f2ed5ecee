"""A rank that ends while another waits for it in a jitted step: the other gets an error that says so."""

import jax
import jax.numpy as jnp
from expecting import raises

import distrun.jax as distrun
from distrun import JobAbortedError

distrun.init()
step = jax.jit(lambda x: distrun.allreduce(x @ x).sum())
jax.block_until_ready(step(jnp.eye(3)))
if distrun.rank() == 1:
    raise SystemExit(0)
with raises((jax.errors.JaxRuntimeError, ValueError), "JobAbortedError: ", "rank 1", "has left"):
    jax.block_until_ready(step(jnp.eye(3)))
with raises(JobAbortedError, "rank 1"):
    distrun.allreduce(jnp.ones(3))
print("told", flush=True)
