"""Alltoall against slices of the tensors of all ranks, with and without splits."""

import numpy as np
from operations import perform_all
from refusals import refuse

import distrun

perform_all(120, "alltoall")
size = distrun.size()
for text, *arguments in (
    ("does not come out even: give `splits`", np.ones(size + 1)),
    ("sum to", np.ones(size), [2] * size),
    ("whole numbers >= 0", np.ones(size), [1] * (size + 1)),
    ("whole numbers >= 0", np.ones(size), [1.0] * size),
    ("whole numbers >= 0", np.ones(size), [-1, *[1] * (size - 2), 2 if size == 2 else 3][:size]),
    ("0-dimensional", np.float32(1)),
):
    refuse(distrun.UsageError, text, lambda: distrun.alltoall(*arguments))  # noqa: B023
assert distrun.alltoall(np.arange(size)).tolist() == [distrun.rank()] * size
