"""The `Work` of a pending operation, which torch.distributed hands to scripts and to its own C++ code."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.futures import Future

from distrun.errors import CollectiveError, DistrunError
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.handle import Handle
from distrun.torch import cuda
from distrun.torch.gradients import backward
from distrun.torch_distributed import completion, gpu_results
from distrun.torch_distributed.group_health import GroupHealth
from distrun.torch_distributed.interface.native_work import PythonWork

Finish = Callable[[], object]
"""Makes one result from the results of several operations."""

_NOTHING = timedelta(0)
_ASSIST_AFTER = 0.05
"""Seconds that a backward pass has at its end to complete its reductions, before another thread does it."""
_collecting = threading.Lock()  # held by the thread that fetches results: one that waits, or the thread of `completion`


class DistrunWork(PythonWork):
    """One pending operation, made of one handle or several.

    torch calls `wait` and `get_future` from C++. C++ code waits for the future, so it is completed even if `wait` is
    never called.
    """

    def __init__(
        self,
        handles: Sequence[Handle],
        tensors: Any,
        timeout: float,
        group: GroupHealth,
        finish: Finish | None = None,
    ) -> None:
        """`tensors` are the result, filled when the handles have been waited for and `finish` was called. The work may
        take `timeout` seconds from its start; infinite for none."""
        super().__init__()
        self._finish = finish
        self._handles = handles
        self._tensors = tensors
        self._timeout = timeout
        self._group = group
        self._future: Future[Any] | None = None
        self._error: Exception | None = None
        self._fetched: cuda.StreamPoint | None = None
        """The point after the copies of results on a GPU into the tensors, once they are queued."""
        self.deadline = waking_clock.now() + timeout

    def wait(self, timeout: timedelta = _NOTHING) -> bool:
        """Return True when the operation is done; for tensors on a GPU, the current stream waits.

        Args:
            timeout: how long to wait. 0 stands for the timeout of the process group.

        Raises:
            StallError: the time is over. After the group's timeout, the operation is given up for all ranks.
            CollectiveError: as `Handle.wait` raises.
        """
        seconds = timeout.total_seconds()
        if seconds > 0 and waking_clock.now() + seconds < self.deadline:
            self._wait_shortly(seconds)
        for handle in self._handles:
            wait_until(handle, self.deadline, self._timeout, self._group)
        self._collect()
        return True

    def _wait_shortly(self, seconds: float) -> None:
        """Wait for less time than the operation may take. It continues afterwards."""
        deadline = waking_clock.now() + seconds
        for handle in self._handles:
            if not handle.done:
                completion.before_waiting()
                handle.engine.wait(_TimedWait(handle, deadline))
                error = None if handle.done else self._group.wait_is_over(handle, seconds)
                if error is not None:
                    raise error

    def is_completed(self) -> bool:
        """Return whether the operation is done, successfully or not. Its results are in place then."""
        if not all(handle.poll() for handle in self._handles):
            return False
        self.exception()
        return True

    def is_success(self) -> bool:
        """Return whether the operation is done, and has not failed."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error of the operation, if it has failed."""
        if self._error is None and all(handle.done for handle in self._handles):
            try:
                self._collect()
            except DistrunError as error:
                self._error = error
        return self._error

    def result(self) -> Any:
        """Return the tensors. They have their values once the operation is done."""
        return self._tensors

    def get_future(self) -> Future[Any]:
        """Return a future of the tensors, which is completed when the operation is."""
        if self._future is None:
            caller = sys._getframe().f_back  # None in a thread of autograd's for a GPU
            is_asked_by_backward = backward.is_engine_call(caller) or (caller is None and backward.current_task() >= 0)
            self._future = self._make_future(is_asked_by_backward)
        return self._future

    def _make_future(self, is_asked_by_backward: bool) -> Future[Any]:
        begun: Future[None] = Future(devices=self._devices())
        # The error of a Python future is a plain value to C++, but an exception in a callback is an error to both.
        future = begun.then(lambda _: self._outcome())
        if all(handle.done for handle in self._handles):
            begun.set_result(None)
            return future
        completion.before_waiting()  # this may be a callback of another future that waits for this one
        if is_asked_by_backward and not self._handles[0].engine.is_served_at_once:
            # All cores compute. So this thread reduces at the end of its pass, before DDP waits for the future.
            completion.expect(self, begun, self._have_completed, _ASSIST_AFTER)
            backward.at_end_of_task(self._complete_here)
            return future
        completion.expect(self, begun)
        self._have_completed()
        if is_asked_by_backward and gpu_results.arena_of(self._handles) is not None:
            backward.at_end_of_task(self._complete_here)  # DDP waits next: spare it the other thread
        return future

    def _have_completed(self) -> None:
        """Make sure that the future is completed although no thread waits for the work."""
        self._watch()
        self._handles[0].engine.ensure_progress()

    def _complete_here(self) -> None:
        """Wait for the operations, and complete the future in this thread."""
        for handle in self._handles:
            wait_until(handle, self.deadline, self._timeout, self._group)
        completion.complete_here(self)

    def _devices(self) -> list[int | str | torch.device]:
        arena = gpu_results.arena_of(self._handles)
        return [] if arena is None else [arena.device]

    def _watch(self, _: Handle | None = None) -> None:
        """Queue the future for completion if all operations are done; otherwise try again when the first unfinished one
        is done."""
        for handle in self._handles:
            handle.when_done = self._watch
            if not handle.done:
                return
        completion.complete(self)

    def _outcome(self) -> Any:
        """Return the tensors with their values, or raise the operation's error."""
        for handle in self._handles:
            if not handle.done:
                self._group.time_is_up(handle, self._timeout)
        if completion.is_here():
            gpu_results.bind(self._handles)
        self._collect()
        return self._tensors

    def _collect(self) -> None:
        if self._future is None:
            self._fetch()
        else:
            with _collecting:
                self._fetch()

    def _fetch(self) -> None:
        if self._fetched is not None:  # perhaps by another thread, on another stream
            self._fetched.wait()
            return
        collect(self._handles, self._group)
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        self._fetched = gpu_results.note_fetched(self._handles, self._tensors)


def collect(handles: Sequence[Handle], group: GroupHealth) -> None:
    """Fetch the results of handles that are done. Raises the error of one that has failed."""
    for handle in handles:
        try:
            handle.wait()
        except CollectiveError as error:
            raise group.error(error) from None


def _forget() -> None:
    """Reset the lock in a forked child of a rank, where no thread fetches results."""
    global _collecting
    _collecting = threading.Lock()


os.register_at_fork(after_in_child=_forget)


class _TimedWait:
    """A wait that ends when the operation is done, or at the deadline."""

    __slots__ = ("deadline", "handle")

    def __init__(self, handle: Handle, deadline: float) -> None:
        self.handle = handle
        self.deadline = deadline

    @property
    def done(self) -> bool:
        return self.handle.done or waking_clock.now() >= self.deadline

    @property
    def title(self) -> str:
        return self.handle.title


def wait_until(handle: Handle, deadline: float, timeout: float, group: GroupHealth) -> None:
    """Return when an operation is done. If it is not done at `deadline`, after `timeout` seconds, it is given up."""
    if not handle.done:
        completion.before_waiting()
        handle.engine.wait(handle if deadline == math.inf else _TimedWait(handle, deadline))
        if not handle.done:
            group.time_is_up(handle, timeout)


class _Done(PythonWork):
    """The work of a synchronous call, which has waited already."""

    def wait(self, timeout: timedelta = _NOTHING) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    is_success = is_completed

    def exception(self) -> None:
        return None

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result([])
        return future


DONE = _Done()
