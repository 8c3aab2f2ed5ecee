"""The job that a script runs in without knowing it: the script, the mode, and whether this process is a copy."""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import NoReturn

import numpy as np

import distrun
from distrun.auto.rehearsal import Rehearsal, RehearsingProcess


@dataclass
class AutoJob:
    """The facts that all frameworks need. There is one object per process, `current`."""

    mode: str = "global"
    """`global`: each batch of the script is divided among the ranks. `scale`: each rank takes a batch of that size."""
    script: str = ""
    """The script's path, or the module's name."""
    seed: int = 0
    """The seed that all ranks of this job begin with. It differs from job to job."""
    is_announced: bool = False
    """Whether rank 0 has printed what was changed."""
    is_in_keras: bool = False
    """Whether Keras is training. With its torch backend, the changes in torch are then inactive."""

    is_copy: bool = False
    """Whether this process is a copy of a rank. It tries a step alone, and ends after it."""
    end_copy: Callable[[], NoReturn] | None = None
    """Ends this copy at the end of the script, and hands over its findings."""
    rehearsal: Rehearsal | None = None
    """The rehearsal that will get the first batch from this rank. None after that."""
    rehearsing: RehearsingProcess | None = None
    """This process's side of a rehearsal, if this is the process that rehearses."""
    is_tried: bool = False
    """Whether this rank works on its part of a batch on which a copy has reached the end of the step."""
    places: frozenset[tuple[CodeType, int]] = frozenset()
    """The code objects and instructions of all frames at the moment when the script left its loop in such a step."""

    @property
    def is_shared(self) -> bool:
        """Whether there are several ranks. A single rank runs the script as it is."""
        return not self.is_copy and distrun.is_initialized() and distrun.size() > 1

    @property
    def is_silent(self) -> bool:
        """Whether this process prints nothing and writes no files, because rank 0 does."""
        return self.is_copy or distrun.rank() > 0

    def begin_random(self, seed: int | None = None) -> None:
        """Seed Python's and numpy's generators. Without a seed, all ranks must call this, and agree on a random one."""
        if seed is None:
            drawn = np.array([secrets.randbits(31)], np.int64)
            seed = int(distrun.broadcast(drawn, 0, "auto.seed")[0])
        self.seed = seed
        random.seed(seed)
        np.random.seed(seed)

    def leave_loop(self) -> None:
        """Note the frames where the script leaves its loop. This may be called while an exception unwinds them."""
        frame: FrameType | None = sys._getframe(1)
        places = set()
        while frame is not None and self.is_tried:
            places.add((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        self.places = frozenset(places)

    def has_failed(self, trace: TracebackType | None) -> bool:
        """Whether an error with this traceback was raised in a step that a copy has finished without an error."""
        while trace is not None:
            if self.is_tried or (trace.tb_frame.f_code, trace.tb_lasti) in self.places:
                return True
            trace = trace.tb_next
        return False


current = AutoJob()
