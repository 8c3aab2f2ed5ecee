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
    """Save on rank 0, and return when the file is there.

    What is saved into memory, or into a temporary folder with a name of its own, is each rank's own. A host that does
    not see rank 0's file gets one.
    """
    if not is_shared() or not isinstance(file, (str, os.PathLike)):
        _plain_save(value, file, *arguments, **options)
        return
    path = os.path.abspath(file)
    is_same = path == distrun.broadcast_object(path, 0, "auto.save.path")
    if distrun.rank() == 0 or not is_same:
        _plain_save(value, file, *arguments, **options)
    distrun.barrier(name="auto.save")
    if distrun.cross_size() > 1:
        if distrun.local_rank() == 0 and not os.path.exists(path):
            _plain_save(value, file, *arguments, **options)
        distrun.barrier(name="auto.save.hosts")


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
