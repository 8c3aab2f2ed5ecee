"""Data for many ranks: each rank gets a different part, and all parts have the same size.

    import distrun.data

    batches = distrun.data.shard((images, labels), batch_size=32, shuffle=True, seed=42)
    model.fit(batches, epochs=10)

`shard` divides arrays, lists, streams, and datasets of tf.data, torch and Keras. `watch` warns where training waits for
its input.

The room: `sharding` finds out what kind of data it was given. `plan` computes which rank takes which samples, and
`position` knows how many samples are done, so that other ranks can continue from there. `shards` (Python's own data),
`tf_data`, `torch_data` and `keras_data` apply them, and `structures` handles nested tuples and dicts. `elastic_sampler`
is Horovod's sampler, for the user's own DataLoader. `waiting` has the policy of the warning, and applies it to
any iterable.
"""

from typing import TYPE_CHECKING

from distrun.data.plan import Division as Division, Plan as Plan
from distrun.data.position import Position as Position
from distrun.data.sharding import shard as shard
from distrun.data.waiting import watch as watch
from distrun.exports import exported as _exported

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = _exported(globals())
