"""The facts that a ring needs about an operation; the handles of the runtime have them."""

from __future__ import annotations

from typing import Protocol


class Request(Protocol):
    """The terms that ranks agree on; see `distrun.runtime.operations.request`."""

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
        """Its name in messages, without its place in the order."""

    cache_id: int
    submitted: int
    """When the coordinator was told, in nanoseconds."""
