"""Data for many ranks: each gets another part of it, and all get as much.

    import distrun.data

    batches = distrun.data.shard((images, labels), batch_size=32, shuffle=True, seed=42)
    model.fit(batches, epochs=10)

`shard` divides arrays, lists, streams, datasets of tf.data, torch and Keras; `watch` warns where training waits for its input.
"""

from typing import TYPE_CHECKING

from distrun.data.plan import Division as Division, Plan as Plan
from distrun.data.sharding import shard as shard
from distrun.data.watching import watch as watch
from distrun.exports import exported as _exported

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = _exported(globals())
