"""Files by which a test tells all ranks of a program something; each of these calls is collective."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import distrun


def is_there(name: str) -> bool:
    """Whether any rank sees a file: all ranks get the same answer. This ends when a rank dies."""
    return bool(distrun.allreduce(np.array([float(Path(name).exists())]), name=name).any())


def is_over(step: int, steps: int) -> bool:
    """Whether as many steps are made as are wanted, or more, and a file `end` tells all ranks that the test is over."""
    return step >= steps and is_there("end")
