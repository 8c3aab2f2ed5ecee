"""Scripts that distribute themselves, which are refused when they begin to, and the modes of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from distrun.auto.refusing import refuse
from distrun.auto.torch.session import current as session

_LINES = ("distrun -np N python script.py  # without --auto: the ranks find each other by torch.distributed",)
_depth = 0


def _refusing(what: str) -> Callable[..., Any]:
    def refused(*arguments: Any, **options: Any) -> None:
        refuse(f"the script distributes by itself: it calls {what}", _LINES)

    return refused


def _train(module: nn.Module, mode: bool = True) -> nn.Module:
    global _depth
    _depth += 1
    try:
        return _plain_train(module, mode)
    finally:
        _depth -= 1
        if not _depth:
            session.modes.add(module)


_plain_train = nn.Module.train


def install() -> None:
    """Refuse calls that set up distribution by other means, and note the modes of modules."""
    nn.Module.train = _train  # type: ignore[method-assign, assignment]
    nn.DataParallel.__init__ = _refusing("torch.nn.DataParallel")  # type: ignore[method-assign]
    nn.parallel.DistributedDataParallel.__init__ = _refusing(  # type: ignore[method-assign]
        "torch.nn.parallel.DistributedDataParallel"
    )
    if torch.distributed.is_available():
        torch.distributed.init_process_group = _refusing("torch.distributed.init_process_group")
