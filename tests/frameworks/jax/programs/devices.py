"""Ranks that have several devices each."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
from checking import check, close, run_checks
from expecting import raises
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import distrun.jax as distrun
from distrun import UsageError

distrun.init()
RANK, SIZE = distrun.rank(), distrun.size()


@check
def a_program_on_one_of_them_works_and_one_on_all_of_them_is_refused():
    mesh, parts = Mesh(np.array(jax.devices()), ("devices",)), PartitionSpec("devices")
    spread = jax.device_put(jnp.arange(4.0) + RANK, NamedSharding(mesh, parts))
    mean = np.arange(4.0) + (SIZE - 1) / 2
    for function in (distrun.allreduce, jax.shard_map(distrun.allreduce, mesh=mesh, in_specs=parts, out_specs=parts)):
        with raises((UsageError, ValueError), "several devices of one rank", "start a rank for each device"):
            jax.jit(function)(spread)
    outside = distrun.allreduce(spread)
    close(outside, mean)
    assert outside.sharding == spread.sharding
    second = jax.device_put(jnp.arange(4.0) + RANK, jax.devices()[1])
    reduced = jax.jit(distrun.allreduce)(second)
    close(reduced, mean)
    assert reduced.devices() == second.devices()


run_checks()
