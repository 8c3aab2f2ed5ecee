"""Messages of ranks to the test, and of the test to all ranks of a program: files, looked for collectively."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import distrun
from distrun.runtime.world import world


def is_there(name: str) -> bool:
    """Whether any rank sees a file: all ranks get the same answer. This ends when a rank dies."""
    return bool(distrun.allreduce(np.array([float(Path(name).exists())]), name=name).any())


def is_over(step: int, steps: int) -> bool:
    """Whether as many steps are made as are wanted, or more, and a file `end` tells all ranks that the test is over."""
    return step >= steps and is_there("end")


def tell(**facts: object) -> None:
    """Print a line that the test reads."""
    print(json.dumps({"generation": world.generation(), **facts}), flush=True)
