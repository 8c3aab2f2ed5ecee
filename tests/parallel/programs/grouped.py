"""Grouped operations: lists of tensors of mixed dtypes and shapes, as one."""

import numpy as np
from operations import perform_all
from refusals import refuse

import distrun

perform_all(60, "allreduce", "allgather", "reducescatter", is_group=True)
refuse(distrun.UsageError, "a group needs at least one tensor", lambda: distrun.grouped_allreduce([]))
many = [np.full(100 + place, place + distrun.rank(), np.float32) for place in range(500)]
for place, result in enumerate(distrun.grouped_allreduce(many, op=distrun.Max, name="many")):
    assert result.tolist() == [place + distrun.size() - 1] * (100 + place)
