"""Works that C++ may keep, and code that it calls while a compiled model runs.

A `PythonWork` is a Python object with a C++ part. If Python frees the object while C++ still holds that part, the
part's `wait` never returns. (torch keeps the works that methods return to C++ alive, but not those that Python code
hands to C++.) So C++ gets a work of its own that keeps the Python work alive: one whose `wait` calls the Python work's,
and raises its errors. The reducer of DDP needs a future too, and gets a work that waits for the future of the Python
work. The thread of `completion` completes that future, with an error after the group's timeout. This `wait` raises
nothing, but the reducer then finds no value.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from torch._C import _distributed_c10d as c10d
from torch._C._dynamo import eval_frame
from torch.distributed import Work

Callee = TypeVar("Callee", type, Callable[..., Any])


class PythonWork(Work):
    """A work in Python."""

    deadline: float
    """When its future is completed at the latest, by the waking clock."""

    def synchronize(self) -> None:
        """Wait, so that work that is queued on the current stream later comes after the operation."""
        self.wait()

    block_current_stream = synchronize

    def boxed(self) -> Any:
        """Return a work for C++, in the form that torch's operators use."""
        return waiting(self).boxed()


def waiting(work: Work) -> Work:
    """Return a work for C++ that has no future, and whose `wait` raises the errors of `work.wait`."""
    if not isinstance(work, PythonWork):
        return work
    kind = getattr(c10d, "PythonCallbackWork", None)
    if kind is None:  # an older torch
        return with_future(work)
    made: Work = kind(lambda timeout: work.wait(timeout))
    return made


def with_future(work: Work) -> Work:
    """Return a work for C++ that has the future of `work`, and whose `wait` raises nothing."""
    if not isinstance(work, PythonWork):
        return work
    made: Work = c10d._create_work_from_future(work.get_future())  # type: ignore[attr-defined]
    return made


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
