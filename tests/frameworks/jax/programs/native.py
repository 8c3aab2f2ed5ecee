"""`initialize` starts JAX's own runtime with the ranks of the job, whoever has started them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import distrun.jax as distrun

distrun.init()
assert not jax.distributed.is_initialized()
distrun.initialize()
assert (jax.process_index(), jax.process_count()) == (distrun.rank(), distrun.size())
assert len(jax.devices()) == distrun.size()

gathered = multihost_utils.process_allgather(jnp.array([distrun.rank() + 1.0]))
np.testing.assert_array_equal(np.ravel(gathered), np.arange(1.0, distrun.size() + 1))

mesh = Mesh(np.array(jax.devices()), ("ranks",))
spread = jax.make_array_from_process_local_data(
    NamedSharding(mesh, PartitionSpec("ranks")), np.full((1, 4), distrun.rank() + 1.0, np.float32)
)
summed = jax.jit(
    jax.shard_map(
        lambda x: jax.lax.psum(x, "ranks"), mesh=mesh, in_specs=PartitionSpec("ranks"), out_specs=PartitionSpec()
    )
)(spread)
total = distrun.size() * (distrun.size() + 1) / 2
np.testing.assert_array_equal(np.asarray(summed.addressable_data(0))[0], np.full(4, total))

# Ours go on working beside it, on arrays of one process.
np.testing.assert_array_equal(distrun.allreduce(jnp.full(3, distrun.rank() + 1.0), distrun.Sum), np.full(3, total))
np.testing.assert_array_equal(jax.jit(distrun.allreduce)(jnp.ones(3)), np.ones(3))
print("native", flush=True)
distrun.shutdown()
