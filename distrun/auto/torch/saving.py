"""Files that libraries write for the script: rank 0 alone writes them; the others wait where they may read them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch

import distrun
from distrun.auto import frameworks
from distrun.auto.torch.session import is_shared


class _Silent:
    """A writer of logs on the ranks that write nothing: every call does nothing."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.log_dir = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **options: None

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _save(value: Any, file: Any, *arguments: Any, **options: Any) -> None:
    is_file = isinstance(file, (str, os.PathLike))
    if not is_shared() or not is_file or distrun.rank() == 0:
        _plain_save(value, file, *arguments, **options)  # into memory, say for a copy, on every rank
    if is_shared() and is_file:
        distrun.barrier(name="auto.save")


def _nothing(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def skipped(*arguments: Any, **options: Any) -> None:
        return None

    return skipped


def _without_writer(module: ModuleType) -> None:
    module.SummaryWriter = _Silent  # type: ignore[attr-defined]


def _without_figures(module: ModuleType) -> None:
    module.Figure.savefig = _nothing(module.Figure.savefig)


def _without_images(module: ModuleType) -> None:
    module.Image.save = _nothing(module.Image.save)


_plain_save = torch.save


def install() -> None:
    """Change what writes files."""
    torch.save = _save  # type: ignore[assignment]
    if distrun.rank() > 0:
        os.environ.setdefault("WANDB_MODE", "disabled")
        frameworks.after_import("torch.utils.tensorboard.writer", _without_writer)
        frameworks.after_import("matplotlib.figure", _without_figures)
        frameworks.after_import("PIL.Image", _without_images)
