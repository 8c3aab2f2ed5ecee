"""Handles: operations on their way, as the caller holds them."""

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
    """One submitted operation. `poll()` asks whether it is done, `wait()` returns its result or raises its error.

    Horovod's torch handles are integers; `distrun.poll` and `distrun.synchronize` take these objects in the same
    places.
    """

    # Defaults of what most handles never change: not setting them keeps making one cheap.
    key: tuple[int, str | int] = (0, "")
    """Process set, then the name or, unnamed, the place in the order."""
    submitted = 0
    """When the coordinator was told of it, as `time.monotonic_ns()`."""
    cache_id = -1
    """The request's in the response cache."""
    full_request = b""
    """The request as a message, while it has no cache id."""
    done = False
    deadline = math.inf
    """A caller waits for it as long as it takes."""
    error: DistrunError | None = None
    received: Sequence[list[int]] = ()
    """Elements that came from each rank, per output, where they may differ."""
    splits: Sequence[int] = ()
    taking_part = 0
    """The number of ranks whose elements count, if some have joined; 0: all have submitted it."""
    may_be_given_up = False
    """Whether its caller may have it given up, see `Engine.give_up`; to be set before it is started."""
    stands_in = False
    """Whether this rank has joined, and takes part in what the others have submitted with arrays in host memory."""
    site = ""
    """Where in user code the operation comes from, if its submitter knows better than the stack does."""
    caller: FrameType | None = None
    """The frame for which another thread submits the operation."""
    feedback: Feedback | None = None
    """The losses by quantisation, if they are to be made up for the next time."""
    when_done: Callable[[Handle], None] | None = None
    """Called by the thread that has completed the operation, right after `done` was set; it must not raise, nor wait.
    A caller that sets it on a handle that is under way looks at `done` afterwards, and may see the call made twice."""
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
        """`inputs` and `outputs` are flat storage arrays, each list taken as one long array; `collect` makes the
        caller's result of a handle that is done, from these and from `given`, which the caller may use as it likes."""
        self.engine = engine
        self.request = request
        self.inputs = inputs
        self.outputs = outputs
        self.collect = collect
        self.given = given

    def poll(self) -> bool:
        """Whether the operation is done, successfully or not; never waits."""
        if not self.done:
            self.engine.ensure_progress()
        return self.done

    def wait(self) -> Any:
        """Wait until the operation is done; its result.

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
        """The operation as messages call it."""
        place = self.key[1] if isinstance(self.key[1], int) else None
        return title(self.request.kind, self.request.name, place)

    @property
    def label(self) -> str:
        """The operation as messages call it, without its place in the order: the same in every step."""
        return title(self.request.kind, self.request.name)

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else "under way"
        return f"<{self.title}: {state}>"


class HandleGroup:
    """Several handles that the caller sees as one, each with its places in the list of results."""

    def __init__(self, parts: Sequence[tuple[AnyHandle, Sequence[int]]]) -> None:
        """`parts`: handles whose results are lists, and at which index of the whole each element belongs."""
        self._parts = parts

    def poll(self) -> bool:
        """Whether all are done; never waits."""
        return all(handle.poll() for handle, _ in self._parts)

    def wait(self) -> list[Any]:
        """Wait for all; their results in the caller's order. Raises as `Handle.wait` does, for the first failure."""
        results: dict[int, Any] = {}
        for handle, places in self._parts:
            results.update(zip(places, handle.wait(), strict=True))
        return [results[place] for place in range(len(results))]


AnyHandle = Handle | HandleGroup


def describe(handles: Sequence[Handle]) -> str:
    """Operations that are executed together, as messages call them: `allreduce 'a' and 3 more`."""
    return handles[0].title if len(handles) == 1 else f"{handles[0].title} and {len(handles) - 1} more"
