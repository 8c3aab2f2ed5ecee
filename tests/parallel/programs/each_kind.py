"""Allgather, alltoall, broadcast, reducescatter and groups of tensors against numpy."""

import numpy as np
from operations import perform_all
from refusals import refuse

import distrun

perform_all(150, "allgather")
size = distrun.size()
assert distrun.allgather([distrun.rank()]).tolist() == list(range(size))

perform_all(120, "alltoall")
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

perform_all(150, "broadcast")
for root in (-1, size, 0.5, None):
    text = f"root_rank={root!r} is not a rank"
    refuse(distrun.UsageError, text, lambda: distrun.broadcast(np.ones(2), root))  # noqa: B023

perform_all(150, "reducescatter")
for op in (distrun.Min, distrun.Max, distrun.Product):
    text = "is not offered: use Sum or Average"
    refuse(distrun.UsageError, text, lambda: distrun.reducescatter(np.ones(4), op=op))  # noqa: B023

perform_all(60, "allreduce", "allgather", "reducescatter", is_group=True)
refuse(distrun.UsageError, "a group needs at least one tensor", lambda: distrun.grouped_allreduce([]))
many = [np.full(100 + place, place + distrun.rank(), np.float32) for place in range(500)]
for place, result in enumerate(distrun.grouped_allreduce(many, op=distrun.Max, name="many")):
    assert result.tolist() == [place + size - 1] * (100 + place)
