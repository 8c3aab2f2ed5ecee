"""The facts about an operation that a ring records. The runtime's handles provide them."""

from __future__ import annotations

from typing import Protocol


class Request(Protocol):
    """The terms that ranks agree on. See `distrun.runtime.operations.request`."""

    @property
    def process_set(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Operation(Protocol):
    """An operation of this rank."""

    @property
    def request(self) -> Request: ...
    @property
    def label(self) -> str:
        """The operation's name in messages, without its place in the order."""

    cache_id: int
    submitted: int
    """When it was submitted to the coordinator, in nanoseconds."""
