"""The places of what was brought to this host, as the agent uses them: of distrun and of the user's code.

The program that prepared the host has said it in a variable (`contract.launch.SHIPPED`), in the process that is the
agent now.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from distrun.contract.launch import SHIPPED

if TYPE_CHECKING:
    from distrun.runner.planning.plan import AgentPlan

_PYTHONS = ("python", "python3")
"""The names that mean the agent's Python where none of that name is on PATH: a bare host may have `python3` only."""


@dataclass(frozen=True)
class Arrived:
    """The places of what was brought."""

    text: str
    """The value of the variable."""
    path: tuple[str, ...]
    """Folders for the search path for modules: that of distrun, and of what it needs."""
    trees: tuple[tuple[str, str], ...]
    """The folders that were shipped: their paths on the launcher's machine, and here."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Arrived | None:
        """Return what was brought; None: nothing was."""
        text = environ.get(SHIPPED)
        if text is None:
            return None
        said = json.loads(text)
        return cls(text, tuple(said["path"]), tuple((source, place) for source, place in said["trees"]))

    def here(self, path: str) -> str:
        """Return the path on this host of what has that path on the launcher's machine, if it was shipped."""
        holding = [tree for tree in self.trees if path == tree[0] or path.startswith(f"{tree[0]}/")]
        if not holding:
            return path
        source, place = max(holding, key=lambda tree: len(tree[0]))  # one may be in another, which leaves it out
        return place + path[len(source) :]

    def adapted(self, plan: AgentPlan) -> AgentPlan:
        """Return a plan with the paths of this host; its variables are complete."""
        environ = dict(plan.environ)
        given = [self.here(entry) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        own, needed = list(self.path[:1]), list(self.path[1:])
        if path := [*own, *given, *needed]:
            environ["PYTHONPATH"] = os.pathsep.join(path)
        environ[SHIPPED] = self.text
        made = replace(plan, wdir=self.here(plan.wdir), environ=environ)
        return replace(made, command=self.command(plan.command, made))

    def command(self, words: Sequence[str], plan: AgentPlan) -> list[str]:
        """Return a command with the paths of this host, and with the agent's Python where that is meant.

        Args:
            words: the command, as the launcher has it.
            plan: that of the host, with the variables that the command will have.
        """
        command = [self.here(word) for word in words]
        is_missing = command[0] in _PYTHONS and shutil.which(command[0], path=plan.environ.get("PATH")) is None
        if is_missing or words[0] == plan.python:
            command[0] = sys.executable
        return command
