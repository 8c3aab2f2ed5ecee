"""Data for many ranks: each gets another part of it, and all get as much.

    import distrun.data

    batches = distrun.data.shard((images, labels), batch_size=32, shuffle=True, seed=42)
    model.fit(batches, epochs=10)

`shard` divides arrays, lists, streams, datasets of tf.data, torch and Keras; `watch` warns where training waits for its input.
"""

from __future__ import annotations

from distrun.data.plan import Division, Plan
from distrun.data.sharding import shard
from distrun.data.watching import watch

__all__ = ["Division", "Plan", "shard", "watch"]
