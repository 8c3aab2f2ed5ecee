"""The command that was probably meant, where the program that a job is to run does not exist."""

from __future__ import annotations

from distrun.runner.command_lines.translate import nearest
from distrun.tools.help.catalogue import COMMANDS

_OTHERS = {
    "version": "distrun --version",
    "run": "distrun -np 2 python train.py",
    "launch": "distrun -np 2 python train.py",
    "start": "distrun -np 2 python train.py",
    "exec": "distrun -np 2 python train.py",
    "attach": "distrun top",
    "config": "distrun help settings",
    "kill": "distrun stop",
    "list": "distrun ps",
    "status": "distrun ps",
    "kubernetes": "distrun k8s",
}
"""Names that the commands of other tools have."""
_PROGRAMS = ("python", "python3", "bash")


def suggestion(word: str) -> str | None:
    """Return the command line that was probably meant by `distrun WORD`, or None in doubt."""
    if word in _OTHERS:
        return _OTHERS[word]
    near = nearest(word, [*COMMANDS, *_PROGRAMS], 0.75)
    return near if near is None or near in _PROGRAMS else f"distrun {near}"
