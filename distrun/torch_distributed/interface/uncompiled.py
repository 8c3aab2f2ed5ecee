"""Excluding distrun's Python code, which C++ calls while a compiled model runs, from torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

Callee = TypeVar("Callee", type, Callable[..., Any])


def leave_uncompiled(callee: Callee) -> Callee:
    """Exclude a function, or the methods of a class, and everything that they call from compilation, and return it.

    `torch.compiler.disable` does the same, but takes a frame for each call, and a second to import.
    """
    if not hasattr(eval_frame, "set_code_exec_strategy"):  # before torch 2.7
        return callee
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    for function in vars(callee).values() if isinstance(callee, type) else [callee]:
        if isinstance(function, FunctionType):
            eval_frame.set_code_exec_strategy(function.__code__, strategy)
    return callee
