"""The job that a script runs in without knowing it: the script, and the mode."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import NoReturn

import distrun
from distrun.auto.rehearsal import Rehearsal, RehearsingProcess

MODES = ("global", "scale")
"""`global`: each batch of the script is divided among the ranks. `scale`: each rank takes a batch of the script's
size."""


@dataclass
class AutoJob:
    """The facts that all frameworks need; there is one per process, `current`."""

    mode: str = "global"
    script: str = ""
    """The script's path, or the module's name."""
    is_announced: bool = False
    """Whether rank 0 has said what was changed."""
    is_in_keras: bool = False
    """Whether Keras is training: on its torch backend, the room of torch then leaves torch as it is."""

    is_copy: bool = False
    """Whether this process is a copy of a rank that tries a step alone, and ends after it."""
    end_copy: Callable[[], NoReturn] | None = None
    """Ends a copy that has come to the end of the script, and leaves what it has found."""
    rehearsal: Rehearsal | None = None
    """The rehearsal that this rank hands the first batch to, until it has."""
    rehearsing: RehearsingProcess | None = None
    """This process, if it is one that rehearses."""
    is_tried: bool = False
    """Whether this rank works on its part of a batch with which such a copy has come to the end of the step."""
    places: frozenset[tuple[CodeType, int]] = frozenset()
    """The code, and the places in it, where the script left its loop in such a step."""

    @property
    def is_shared(self) -> bool:
        """Whether there are several ranks; a world of one runs the script as it is."""
        return not self.is_copy and distrun.is_initialized() and distrun.size() > 1

    @property
    def is_silent(self) -> bool:
        """Whether this process prints nothing and writes no files: rank 0 does."""
        return self.is_copy or distrun.rank() > 0

    def leave_loop(self) -> None:
        """The script leaves its loop where this is called, perhaps as an exception unwinds its frame."""
        frame: FrameType | None = sys._getframe(1)
        places = set()
        while frame is not None and self.is_tried:
            places.add((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        self.places = frozenset(places)

    def has_failed(self, trace: TracebackType | None) -> bool:
        """Whether an error with this traceback was raised in a step that such a copy has come to the end of."""
        while trace is not None:
            if self.is_tried or (trace.tb_frame.f_code, trace.tb_lasti) in self.places:
                return True
            trace = trace.tb_next
        return False


current = AutoJob()
