"""Files that libraries write for the script: only rank 0 writes them. The others wait if they may read the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

import torch

import distrun
from distrun.auto import frameworks, job
from distrun.auto.torch import reading
from distrun.auto.torch.session import is_shared


class _Silent:
    """A summary writer on the ranks that write nothing: a call only reads the losses in its arguments."""

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
    """Save on rank 0, and return on all ranks when the file exists.

    Each rank saves for itself into memory, or into a temporary folder with a unique name. If only rank 0 has the
    folder, because its name contains the time or a random number, this rank will load rank 0's file. A host that does
    not share rank 0's file system gets its own file.
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


def _without(kind: str, save: str, module: ModuleType) -> None:
    """Let the method `save` of the class `kind` do nothing."""
    owner = getattr(module, kind)

    @wraps(getattr(owner, save))
    def skipped(*arguments: Any, **options: Any) -> None:
        return None

    setattr(owner, save, skipped)


def _without_writer(module: ModuleType) -> None:
    module.SummaryWriter = _Silent  # type: ignore[attr-defined]


def _with_read_losses(module: ModuleType) -> None:
    """Read the losses that are given to rank 0's summary writer: all ranks take part in that (see `_Silent`)."""
    for name, method in list(vars(module.SummaryWriter).items()):
        if name.startswith("add_") and callable(method):
            setattr(module.SummaryWriter, name, _reading(method))


def _reading(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def write(writer: Any, *arguments: Any, **options: Any) -> Any:
        given, named = reading.read_in((arguments, options))
        return method(writer, *given, **named)

    return write


_plain_save = torch.save
_plain_load = torch.load
_plain_makedirs = getattr(os.makedirs, "__wrapped__", os.makedirs)  # as `files` may have replaced it
_rank_0s: dict[str, str] = {}  # from paths that this rank did not write to the paths of rank 0's files


def install() -> None:
    """Change the functions and classes that write files."""
    torch.save, torch.load = _save, _load  # type: ignore[assignment]
    for writers in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        frameworks.after_import(writers, _without_writer if job.current.is_silent else _with_read_losses)
    if job.current.is_silent:
        os.environ.setdefault("WANDB_MODE", "disabled")
        for module, kind, save in (("matplotlib.figure", "Figure", "savefig"), ("PIL.Image", "Image", "save")):
            frameworks.after_import(module, partial(_without, kind, save))
