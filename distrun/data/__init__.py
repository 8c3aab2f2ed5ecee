"""Data for many ranks: each gets another part of it, and all get as much.

    import distrun.data

    batches = distrun.data.shard((images, labels), batch_size=32, shuffle=True, seed=42)
    model.fit(batches, epochs=10)

`shard` divides arrays, lists, streams, datasets of tf.data, torch and Keras; `watch` warns where training waits for its
input.

The room: `sharding` finds out what kind of data it has been given. `plan` is the arithmetic of who takes which samples,
and `position` how many of them are done, from where other ranks can go on. `shards` (Python's own data), `tf_data`,
`torch_data` and `keras_data` apply them, and `structures` knows nested tuples and dicts. `elastic_sampler` is Horovod's
sampler for a DataLoader of one's own. `waiting` is the policy of the warning, `watching` applies it to any iterable.
"""

from typing import TYPE_CHECKING

from distrun.data.plan import Division as Division, Plan as Plan
from distrun.data.position import Position as Position
from distrun.data.sharding import shard as shard
from distrun.data.watching import watch as watch
from distrun.exports import exported as _exported

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = _exported(globals())
