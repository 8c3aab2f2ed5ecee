"""Broadcast: all ranks end with the root's values."""

import numpy as np
from operations import perform_all
from refusals import refuse

import distrun

perform_all(150, "broadcast")
for root in (-1, distrun.size(), 0.5, None):
    text = f"root_rank={root!r} is not a rank"
    refuse(distrun.UsageError, text, lambda: distrun.broadcast(np.ones(2), root))  # noqa: B023
