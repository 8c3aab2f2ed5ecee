"""Works that C++ may keep.

A work of ours is a Python object. When Python forgets it while C++ still holds its C++ part, then that part alone is
left, and its `wait` never returns. (What our methods return to C++ is kept by torch; what Python hands to C++ is not.)
So C++ gets a work of its own that keeps ours: one whose `wait` calls ours, and raises its errors. The reducer of
DDP wants a future too, and gets a work that waits for the future of ours, which the thread of `completion` completes,
after the group's timeout with an error; that `wait` raises nothing, but the reducer then finds no value.
"""

from __future__ import annotations

from typing import Any

from torch._C import _distributed_c10d as c10d
from torch.distributed import Work


class PythonWork(Work):
    """A work in Python."""

    def boxed(self) -> Any:
        """Return a work for C++, as torch's operators have it."""
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
