"""Two requests that take turns under one name, and ranks that are now and then not of one mind about which it is."""

import random

import numpy as np

import distrun
from distrun.errors import MismatchError

distrun.init()
RANK, SIZE = distrun.rank(), distrun.size()
LENGTHS = [3, 4, 4000]
chance = random.Random(1)  # the same on all ranks
disagreements = 0
for step in range(400):
    ours = [chance.choice(LENGTHS)] * SIZE
    if chance.random() < 0.3:
        ours[chance.randrange(SIZE)] = chance.choice(LENGTHS)
    try:
        array = distrun.allreduce(np.full(ours[RANK], float(step + RANK)), op=distrun.Sum, name="x")
    except MismatchError:
        assert len(set(ours)) > 1, step
        disagreements += 1
    else:
        assert len(set(ours)) == 1, step
        expected = SIZE * step + SIZE * (SIZE - 1) / 2
        assert np.array_equal(array, np.full(ours[RANK], expected)), step
assert disagreements > 40
