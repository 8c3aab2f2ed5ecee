"""Files that libraries write for the script: rank 0 alone writes them; the others wait where they may read them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch

import distrun
from distrun.auto import frameworks, job
from distrun.auto.torch import reading
from distrun.auto.torch.session import is_shared


class _Silent:
    """A writer of logs on the ranks that write nothing: every call but reads the losses that it is given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.log_dir = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _read

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _read(*arguments: Any, **options: Any) -> None:
    reading.read_in((arguments, options))


def _save(value: Any, file: Any, *arguments: Any, **options: Any) -> None:
    """Save on rank 0, and return when the file is there.

    What is saved into memory, or into a temporary folder with a name of its own, is each rank's own. If a folder is
    there on rank 0 alone, because its name is the time's or chance's, this rank loads rank 0's file later. A host that
    does not see rank 0's file gets one.
    """
    if job.current.is_copy and isinstance(file, (str, os.PathLike)):
        return
    value = reading.read_in(value) if is_shared() else value
    if not is_shared() or not isinstance(file, (str, os.PathLike)):
        _plain_save(value, file, *arguments, **options)
        return
    mine = os.path.abspath(file)
    path = distrun.broadcast_object(mine, 0, "auto.save.path")
    if distrun.rank() == 0 or (path != mine and os.path.isdir(os.path.dirname(mine))):
        _plain_save(value, file, *arguments, **options)
    elif path != mine:
        _rank_0s[mine] = path
    distrun.barrier(name="auto.save")
    if distrun.cross_size() > 1:
        if distrun.local_rank() == 0 and not os.path.exists(path):
            _plain_makedirs(os.path.dirname(path), exist_ok=True)
            _plain_save(value, path, *arguments, **options)
        distrun.barrier(name="auto.save.hosts")


def _load(file: Any, *arguments: Any, **options: Any) -> Any:
    if _rank_0s and isinstance(file, (str, os.PathLike)):
        file = _rank_0s.get(os.path.abspath(file), file)
    return _plain_load(file, *arguments, **options)


def _nothing(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def skipped(*arguments: Any, **options: Any) -> None:
        return None

    return skipped


def _without_writer(module: ModuleType) -> None:
    module.SummaryWriter = _Silent  # type: ignore[attr-defined]


def _with_read_losses(module: ModuleType) -> None:
    """Have the writer of rank 0 given losses that are read, which all ranks take part in."""
    for name, method in list(vars(module.SummaryWriter).items()):
        if name.startswith("add_") and callable(method):
            setattr(module.SummaryWriter, name, _reading(method))


def _reading(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def write(writer: Any, *arguments: Any, **options: Any) -> Any:
        given, named = reading.read_in((arguments, options))
        return method(writer, *given, **named)

    return write


def _without_figures(module: ModuleType) -> None:
    module.Figure.savefig = _nothing(module.Figure.savefig)


def _without_images(module: ModuleType) -> None:
    module.Image.save = _nothing(module.Image.save)


_plain_save = torch.save
_plain_load = torch.load
_plain_makedirs = getattr(os.makedirs, "__wrapped__", os.makedirs)  # the script's calls may do nothing
_rank_0s: dict[str, str] = {}  # paths of this rank's that are not there -> those of rank 0's files


def install() -> None:
    """Change what writes files."""
    torch.save, torch.load = _save, _load  # type: ignore[assignment]
    for writers in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        frameworks.after_import(writers, _without_writer if job.current.is_silent else _with_read_losses)
    if job.current.is_silent:
        os.environ.setdefault("WANDB_MODE", "disabled")
        frameworks.after_import("matplotlib.figure", _without_figures)
        frameworks.after_import("PIL.Image", _without_images)
