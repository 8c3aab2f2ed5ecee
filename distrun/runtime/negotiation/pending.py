"""The ledger: the operations of this rank that are under way, and what it knows about requests it has seen before."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from distrun.errors import UsageError
from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.negotiation.messages import unpack_numbers
from distrun.runtime.operations.callsite import call_site
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request, fusion_key, title
from distrun.runtime.shared_memory.mailbox import LARGEST
from distrun.tensor_fusion.batching import SMALL, fuse

_KNOWN_PLANS = 1000


class PendingOperations:
    """Operations are entered once, by whichever thread submits them, and taken out once, by the driver of the engine."""

    def __init__(self, fusion_threshold: int) -> None:
        self.pending: dict[Key, Handle] = {}
        self.outbox: deque[Handle] = deque()
        """Operations the coordinator has not been told about yet."""
        self._unnamed: dict[int, deque[Key]] = {}  # process set -> unnamed operations under way, oldest first
        self._places: dict[int, int] = {}  # process set -> unnamed operations so far
        self._order = threading.Lock()  # the order of unnamed operations must be the order of their places
        self._requests: dict[int, Request] = {}
        self._numbers: dict[Request, int] = {}
        self._named: dict[Key, tuple[Request, int]] = {}  # what a name last stood for
        self._keys: dict[int, Key] = {}  # of named numbers
        self._threshold = fusion_threshold
        self._plans: dict[bytes, list[list[int]]] = {}

    def enter(self, handle: Handle) -> None:
        """Note an operation that is now under way.

        Raises:
            UsageError: its name is under way already, or the request is too large.
        """
        request = handle.request
        if request.name is None:
            with self._order:
                self._enter_unnamed(handle)
            return
        handle.key = key = (request.process_set, request.name)
        known = self._named.get(key)
        if known is None or known[0] != request:  # two requests may take turns under one name
            known = request, self._numbers.get(request, -1)
            if known[1] >= 0:
                self._named[key] = known
        handle.number = known[1]
        if handle.number < 0:
            _write_full_request(handle)
        if self.pending.setdefault(key, handle) is not handle:
            raise UsageError(
                f"{title(request.kind, request.name)} is under way already: wait for it, or give this operation another name"
            )
        self.outbox.append(handle)

    def _enter_unnamed(self, handle: Handle) -> None:
        request = handle.request
        handle.number = self._numbers.get(request, -1)
        if handle.number < 0:
            _write_full_request(handle)
        place = self._places.get(request.process_set, 0)
        self._places[request.process_set] = place + 1
        handle.key = (request.process_set, place)
        self.pending[handle.key] = handle
        self._unnamed.setdefault(request.process_set, deque()).append(handle.key)
        self.outbox.append(handle)

    def take(self, message: bytes) -> list[Handle]:
        """Take out the operations that the numbers in an "execute" message now stand for, in its order."""
        handles = []
        for number in unpack_numbers(message):
            key = self._keys.get(number)
            if key is None:
                key = self._unnamed[self._requests[number].process_set].popleft()
            handles.append(self.pending.pop(key))
        return handles

    def named(self, number: int) -> Handle:
        """The operation under way that a number of a named request now stands for; it stays."""
        return self.pending[self._keys[number]]

    def take_named(self, number: int) -> Handle:
        """Take out the operation that a number of a named request now stands for."""
        return self.pending.pop(self._keys[number])

    def numbers_of(self, key: Key) -> list[int]:
        """The numbers of all requests that a name has stood for."""
        return [number for number, name in self._keys.items() if name == key]

    def take_new(self, request: Request, number: int) -> Handle:
        """Take out the operation that asked for `request`, which has `number` (unless -1) from now on."""
        key: Key | None = None if request.name is None else (request.process_set, request.name)
        if number >= 0:
            self._requests[number] = request
            self._numbers[request] = number
            if key is not None:
                self._keys[number] = key
                self._named[key] = request, number
        return self.pending.pop(key or self._unnamed[request.process_set].popleft())

    def take_failed(self, key: Key) -> Handle | None:
        """Take out the operation under a key, if there is one."""
        handle = self.pending.pop(key, None)
        if handle is not None and isinstance(key[1], int):
            self._unnamed[key[0]].remove(key)
        return handle

    def take_all(self) -> list[Handle]:
        """Take out everything: nothing can complete any more."""
        handles = list(self.pending.values())
        self.pending.clear()
        self.outbox.clear()
        self._unnamed.clear()
        return handles

    def put_back(self, handles: Sequence[Handle]) -> None:
        """Operations that were taken out could not be carried out."""
        for handle in handles:
            self.pending[handle.key] = handle

    def plan(self, message: bytes) -> list[list[int]]:
        """Which operations of an "execute" message travel together, by their places in it.

        Training repeats itself: most messages are known.
        """
        plan = self._plans.get(message)
        if plan is None:
            requests = [self._requests[number] for number in unpack_numbers(message)]
            plan = fuse(
                range(len(requests)),
                key=lambda place: fusion_key(requests[place]) if requests[place].nbytes < SMALL else None,
                nbytes=lambda place: requests[place].nbytes,
                threshold=self._threshold,
            )
            if len(self._plans) >= _KNOWN_PLANS:
                self._plans.clear()
            self._plans[message] = plan
        return plan


def _write_full_request(handle: Handle) -> None:
    """Prepare the long form of a request that has no number yet."""
    name = handle.request.name
    if not (name is None or isinstance(name, str)):
        raise UsageError(f"name={name!r} is no name for an operation: use a string")
    handle.full_request = handle.request.encode(handle.site or call_site())
    if len(handle.full_request) > LARGEST:
        raise UsageError(
            f"a request of {len(handle.full_request)} bytes is too large to negotiate (limit {LARGEST}): "
            "split the group, or use shorter names"
        )
