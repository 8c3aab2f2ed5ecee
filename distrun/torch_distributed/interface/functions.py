"""Replacements for functions of torch.distributed that would refuse distrun's groups, or hand their works to C++. For
other groups they call torch's functions.

`monitored_barrier` and `_set_pg_timeout` only know the groups of gloo and NCCL. `_register_work` and the reducer of DDP
keep a work in C++.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from distrun.torch_distributed.interface.native_work import waiting, with_future

Kind = type[Any]

_replaced_for: Kind | None = None


def replace_functions(kind: Kind) -> None:
    """Make the functions of torch.distributed accept groups of `kind`."""
    global _replaced_for
    if _replaced_for is kind:
        return
    _replaced_for = kind
    _replace([distributed_c10d, dist], "monitored_barrier", lambda theirs: _monitored_barrier(theirs, kind))
    _replace([distributed_c10d, dist], "_set_pg_timeout", lambda theirs: _set_pg_timeout(theirs, kind))
    _replace([c10d], "_register_work", lambda theirs: _given(theirs, waiting))
    _replace([c10d.Reducer], "_set_forward_pass_work_handle", lambda theirs: _given(theirs, with_future))


def _replace(owners: list[Any], name: str, make: Callable[[Any], Any]) -> None:
    """Replace the function `name` in all `owners` that have it."""
    theirs = getattr(owners[0], name, None)
    if theirs is None:
        return
    ours = functools.wraps(theirs)(make(theirs))
    for owner in owners:
        if hasattr(owner, name):
            setattr(owner, name, ours)


def _monitored_barrier(theirs: Any, kind: Kind) -> Any:
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        chosen = distributed_c10d._get_default_group() if group is None else group
        if isinstance(chosen, kind):
            chosen.monitored_barrier(timeout, wait_all_ranks)
        else:
            theirs(group, timeout, wait_all_ranks)

    return monitored_barrier


def _set_pg_timeout(theirs: Any, kind: Kind) -> Any:
    def set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        chosen = distributed_c10d._get_default_group() if group is None else group
        if isinstance(chosen, kind):
            chosen.set_timeout(timeout)
        else:
            theirs(timeout, group)

    return set_pg_timeout


def _given(theirs: Any, make: Callable[[Any], Any]) -> Any:
    def keep(owner: Any, work: Any, *args: Any) -> None:
        theirs(owner, make(work), *args)

    return keep
