"""A common seed for the random numbers of all ranks.

A script that sets no seed gets a different one in each process. But the ranks must agree on much that scripts draw at
random: a split of the data, the order of the samples, a decision in the training loop. So before the script begins,
Python's and numpy's generators get the same seed on all ranks. `distrun.auto.torch` does the same for torch's.
"""

from __future__ import annotations

import random
import secrets

import distrun

_seed = 0


def common_seed() -> int:
    """Return the seed that all ranks of this job begin with. It differs from job to job."""
    return _seed


def begin(seed: int | None = None) -> None:
    """Seed Python's and numpy's generators. Without a seed, all ranks must call this, and agree on a random one."""
    global _seed
    import numpy as np

    if seed is None:
        drawn = np.array([secrets.randbits(31)], np.int64)
        seed = int(distrun.broadcast(drawn, 0, "auto.seed")[0])
    _seed = seed
    random.seed(_seed)
    np.random.seed(_seed)
