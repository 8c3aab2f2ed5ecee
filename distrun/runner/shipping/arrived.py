"""The paths of distrun and the user's code that were brought to this host, for the agent.

The program that prepared the host has set a variable with them (`contract.launch.SHIPPED`), in the process that is now
the agent.
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
"""The names that stand for the agent's Python if they are not on PATH: a bare host may have `python3` only."""


@dataclass(frozen=True)
class Arrived:
    """The paths of what was brought to this host."""

    text: str
    """The value of the variable."""
    path: tuple[str, ...]
    """Folders for the search path for modules: distrun's first, and then its dependencies'."""
    trees: tuple[tuple[str, str], ...]
    """The shipped folders, as pairs of their paths on the launcher's machine and here."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Arrived | None:
        """Return the paths in the environment, or None if nothing was brought."""
        text = environ.get(SHIPPED)
        if text is None:
            return None
        said = json.loads(text)
        return cls(text, tuple(said["path"]), tuple((source, place) for source, place in said["trees"]))

    def here(self, path: str) -> str:
        """Return the path on this host for a path on the launcher's machine. Paths that were not shipped stay."""
        holding = [tree for tree in self.trees if path == tree[0] or path.startswith(f"{tree[0]}/")]
        if not holding:
            return path
        source, place = max(holding, key=lambda tree: len(tree[0]))  # the innermost folder that holds the path
        return place + path[len(source) :]

    def adapted(self, plan: AgentPlan) -> AgentPlan:
        """Return a plan with the paths of this host. Its variables must be complete."""
        environ = dict(plan.environ)
        given = [self.here(entry) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        own, needed = list(self.path[:1]), list(self.path[1:])
        if path := [*own, *given, *needed]:
            environ["PYTHONPATH"] = os.pathsep.join(path)
        environ[SHIPPED] = self.text
        made = replace(plan, wdir=self.here(plan.wdir), environ=environ)
        return replace(made, command=self.command(plan.command, made))

    def command(self, words: Sequence[str], plan: AgentPlan) -> list[str]:
        """Return a command with the paths of this host, and with the agent's Python if the command means any Python.

        Args:
            words: the command on the launcher's machine.
            plan: the plan of the host, with the variables that the command will have.
        """
        command = [self.here(word) for word in words]
        is_missing = command[0] in _PYTHONS and shutil.which(command[0], path=plan.environ.get("PATH")) is None
        if is_missing or words[0] == plan.python:
            command[0] = sys.executable
        return command
