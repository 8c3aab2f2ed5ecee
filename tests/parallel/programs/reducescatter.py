"""Reducescatter: this rank's rows of the reduction; earlier ranks keep one more where the division leaves a rest."""

import numpy as np
from operations import perform_all
from refusals import refuse

import distrun

perform_all(150, "reducescatter")
for op in (distrun.Min, distrun.Max, distrun.Product):
    text = "is not offered: use Sum or Average"
    refuse(distrun.UsageError, text, lambda: distrun.reducescatter(np.ones(4), op=op))  # noqa: B023
