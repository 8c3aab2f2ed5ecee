"""Handles: operations under way, as the caller holds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from numpy.typing import NDArray

from distrun.errors import DistrunError
from distrun.runtime.operations.engine import Engine
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.request import Request, title

Flat = NDArray[Any]


def outputs_of(handle: Handle) -> Any:
    """The result of a handle whose outputs are the caller's result as they are."""
    return handle.outputs


class Handle:
    """One submitted operation. `poll()` says whether it is done, `wait()` returns its result or raises its error.

    Horovod's torch handles are integers. `distrun.poll` and `distrun.synchronize` take these objects in the same
    places.
    """

    # Defaults of attributes that most handles never change: not setting them keeps the creation of a handle cheap.
    key: tuple[int, str | int] = (0, "")
    """The process set, then the name or, if unnamed, the place in the order."""
    submitted = 0
    """When it was submitted to the coordinator, as `time.monotonic_ns()`."""
    cache_id = -1
    """The request's id in the response cache, or -1."""
    full_request = b""
    """The request as a message, while it has no cache id."""
    done = False
    deadline = math.inf
    """A caller waits for an operation without a time limit."""
    error: DistrunError | None = None
    received: Sequence[list[int]] = ()
    """The number of elements that came from each rank, per output, where ranks may differ."""
    splits: Sequence[int] = ()
    taking_part = 0
    """The number of ranks whose elements count, if some have joined. 0: all ranks have submitted the operation."""
    stands_in = False
    """Whether this rank has joined, and takes part in the other ranks' operation with arrays in host memory."""
    site = ""
    """The call site in user code, if the submitting code knows it better than the stack does."""
    caller: FrameType | None = None
    """The frame that the operation is submitted for, if another thread submits it."""
    feedback: Feedback | None = None
    """The residuals of quantisation, if error feedback is used."""
    when_done: Callable[[Handle], None] | None = None
    """Called by the thread that has completed the operation, right after `done` was set. It must not raise or block.
    A caller that sets it while the operation is under way must check `done` afterwards. It may then be called twice."""
    _is_collected = False
    _result: Any = None

    def __init__(
        self,
        engine: Engine,
        request: Request,
        inputs: Sequence[Flat],
        outputs: Sequence[Flat] = (),
        collect: Callable[[Handle], Any] = outputs_of,
        given: Any = None,
    ) -> None:
        """
        Args:
            engine: makes the operation progress.
            request: what the ranks have to agree on.
            inputs, outputs: flat storage arrays. Each list is treated as one long array.
            collect: makes the caller's result of the handle when it is done, from its `outputs` and `given`.
            given: any value, for `collect`.
        """
        self.engine = engine
        self.request = request
        self.inputs = inputs
        self.outputs = outputs
        self.collect = collect
        self.given = given

    def poll(self) -> bool:
        """Whether the operation is done, successfully or not. Never waits."""
        if not self.done:
            self.engine.ensure_progress()
        return self.done

    def wait(self) -> Any:
        """Wait until the operation is done, and return its result.

        Raises:
            MismatchError: the ranks disagreed about the operation.
            StallError: some rank did not submit it within the stall timeout.
            JobAbortedError: a rank is gone.
        """
        if not self.done:
            self.engine.wait(self)
        if self.error is not None:
            self.engine.error_reported()
            raise type(self.error)(*self.error.args)
        if not self._is_collected:
            self._result = self.collect(self)
            self._is_collected = True
        return self._result

    @property
    def title(self) -> str:
        """The operation's name in messages."""
        return describe_request(self.request, self.key)

    @property
    def label(self) -> str:
        """The operation's name in messages without its place in the order, so the same in every step."""
        return title(self.request.kind, self.request.name)

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else "under way"
        return f"<{self.title}: {state}>"


class HandleGroup:
    """Several handles that the caller sees as one, whose results are merged into one list."""

    def __init__(self, parts: Sequence[tuple[AnyHandle, Sequence[int]]]) -> None:
        """`parts`: handles whose results are lists, each with the index that every element has in the merged list."""
        self._parts = parts

    def poll(self) -> bool:
        """Whether all are done. Never waits."""
        return all(handle.poll() for handle, _ in self._parts)

    def wait(self) -> list[Any]:
        """Wait for all, and return the results in the caller's order. Raises the first error, as `Handle.wait` does."""
        results: dict[int, Any] = {}
        for handle, places in self._parts:
            results.update(zip(places, handle.wait(), strict=True))
        return [results[place] for place in range(len(results))]


AnyHandle = Handle | HandleGroup


def describe(handles: Sequence[Handle]) -> str:
    """The name in messages of operations that are executed together: `allreduce 'a' and 3 more`."""
    return describe_request(handles[0].request, handles[0].key, len(handles))


def describe_request(request: Request, key: tuple[int, str | int], count: int = 1) -> str:
    """Return what `describe` does, from the first handle's request and key, and the number of handles."""
    place = key[1] if isinstance(key[1], int) else None
    name = title(request.kind, request.name, place)
    return name if count == 1 else f"{name} and {count - 1} more"
