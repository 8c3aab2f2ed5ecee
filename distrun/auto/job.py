"""The job that a script runs in without knowing it: the mode, and what was changed."""

from __future__ import annotations

from dataclasses import dataclass, field

import distrun

MODES = ("global", "scale")
"""`global`: each batch of the script is divided among the ranks. `scale`: each rank takes a batch of the script's
size."""


@dataclass
class AutoJob:
    """The facts that all frameworks need; there is one per process, `current`."""

    mode: str = "global"
    script: str = ""
    """The script's path, or the module's name."""
    changes: list[str] = field(default_factory=list)
    """Lines that say what was changed."""
    is_announced: bool = False
    is_in_keras: bool = False
    """Whether Keras is training: on its torch backend, the room of torch then leaves torch as it is."""

    @property
    def is_shared(self) -> bool:
        """Whether there are several ranks; a world of one runs the script as it is."""
        return distrun.is_initialized() and distrun.size() > 1


current = AutoJob()
