"""Allreduce against numpy: every dtype, operator, scale, shape, layout and form of the call."""

import numpy as np
from operations import perform_all

import distrun

perform_all(180, "allreduce")

# What numpy takes, distrun takes.
size = distrun.size()
readonly = np.ones(5)
readonly.flags.writeable = False
for given, expected in (
    (3, 3 * size),
    ([[1.0, 2.0]], [[size, 2 * size]]),
    (readonly, [size] * 5),
    (np.broadcast_to(np.float64(1), (4, 3)), [[size] * 3] * 4),
):
    assert distrun.allreduce(given, op=distrun.Sum).tolist() == expected
assert distrun.allreduce(np.float32(2)).dtype == np.float32
assert distrun.allreduce(np.ones(3), prescale_factor=np.float32(0.5)).tolist() == [0.5] * 3
