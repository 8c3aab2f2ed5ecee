"""Keeping torch.compile away from our own Python, which C++ calls while a compiled model runs."""

from __future__ import annotations

from types import FunctionType

from torch._C._dynamo import eval_frame


def leave_uncompiled(kind: type) -> None:
    """Have the methods of a class, and all that they call, run as they are.

    `torch.compiler.disable` does the same, but takes a frame for each call, and a second to import.
    """
    if not hasattr(eval_frame, "set_code_exec_strategy"):  # before torch 2.7
        return
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            eval_frame.set_code_exec_strategy(method.__code__, strategy)
