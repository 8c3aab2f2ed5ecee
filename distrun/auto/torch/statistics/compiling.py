"""Functions of `torch.compile`: in steps that are followed or tried, they run eagerly.

Compiled functions would not show their operations, or would be compiled once more for such a step. torch before 2.6
cannot switch this. There, nothing is followed or tried once a script has called `torch.compile`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_is_compiling = False  # the script has called `torch.compile`
_is_eager = False
_stance: Any = None


def can_follow() -> bool:
    """Whether the script's operations can be followed."""
    return not _is_compiling or hasattr(torch.compiler, "set_stance")


def run_eagerly(is_eager: bool) -> None:
    """Run compiled functions eagerly until the next call, or compiled again if `is_eager` is false."""
    global _is_eager, _stance
    _is_eager = is_eager
    if is_eager and _is_compiling and _stance is None and hasattr(torch.compiler, "set_stance"):
        _stance = torch.compiler.set_stance("force_eager")
    elif not is_eager and _stance is not None:
        _stance.__exit__(None, None, None)
        _stance = None


def _compile(*arguments: Any, **options: Any) -> Any:
    global _is_compiling
    compiled = _plain_compile(*arguments, **options)
    _is_compiling = True
    run_eagerly(_is_eager)
    return compiled


_plain_compile = torch.compile


def install() -> None:
    """Change `torch.compile`."""
    torch.compile = functools.wraps(_plain_compile)(_compile)
