"""The pending operations of a rank, from submission to completion."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from distrun.errors import UsageError
from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.negotiation.joining import stand_in
from distrun.runtime.negotiation.messages import LARGEST_REQUEST, unpack_ids
from distrun.runtime.operations.call_site import call_site, waiting_site
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import (
    DISSOLVE_PROCESS_SET,
    FORM_PROCESS_SET,
    JOIN_NAME,
    Request,
    fusion_key,
    title,
)
from distrun.tensor_fusion.batching import FUSED_BELOW, fuse

_KNOWN_PLANS = 1000


class PendingOperations:
    """The owner of a rank's operations under way.

    ::

        enter -> outbox -> pending -> decide -> decided -> (executed)
                              |
                              '-----> finish -> finished -> (done)

    Any thread may enter an operation. Named operations are pending at once, since a name may be under way only once.
    Everything else is called by the thread that has the turn to make progress. An operation that it does not complete
    stays in a queue, where `take_all` finds it.
    """

    def __init__(self, fusion_threshold: int) -> None:
        """`fusion_threshold` is the most bytes to fuse."""
        self.outbox: deque[Handle] = deque()
        """Operations that the coordinator does not know yet, in order."""
        self.decided: deque[list[Handle]] = deque()
        """Batches to execute, in the order of the coordinator's decisions. Each is fused into one operation, and is
        removed when it is done."""
        self.finished: list[Handle] = []
        """Operations whose results or errors came in a message, to be removed when they are done."""
        self.pending: dict[Key, Handle] = {}
        """Operations that wait for the coordinator's decision. Named ones are here as soon as they are entered."""
        self._unnamed: dict[int, deque[Key]] = {}  # by process set: unnamed operations that are pending, oldest first
        self._places: dict[int, int] = {}  # by process set: the number of unnamed operations so far
        # The response cache (see `Controller`). Ids are never redefined, so nothing is invalidated. Any thread may look
        # up, and only the thread that has the turn adds.
        self._requests: dict[int, Request] = {}  # by cache id
        self._cache_ids: dict[Request, int] = {}
        self._keys: dict[int, Key] = {}  # by cache id: the keys under which named requests are pending
        self._latest: dict[Key, tuple[Request, int]] = {}  # the last request of each name, and its cache id
        self._threshold = fusion_threshold
        self._plans: dict[bytes, tuple[list[int], list[list[int]]]] = {}

    # By any thread ----------------------------------------------------------------------------------------------------

    def enter(self, handle: Handle) -> None:
        """Add an operation. A signal handler may interrupt this and enter an operation itself.

        Raises:
            UsageError: an operation of its name is under way already, or the request is too large.
        """
        request = handle.request
        if request.name is None:  # it is numbered when it leaves the outbox, which keeps the order across threads
            handle.cache_id = self._cache_ids.get(request, -1)
            if handle.cache_id < 0:
                _write_full_request(handle)
            self.outbox.append(handle)
            return
        handle.key = key = (request.process_set, request.name)
        known = self._latest.get(key)
        # Equal to the last request of this name, as in nearly every step: comparing is faster than hashing.
        if known is not None and known[0] == request:
            handle.cache_id = known[1]
        else:
            handle.cache_id = self._cache_ids.get(request, -1)
            if handle.cache_id >= 0:  # two requests may alternate under one name
                self._latest[key] = request, handle.cache_id
        if handle.cache_id < 0:
            _write_full_request(handle)
        if request.kind == DISSOLVE_PROCESS_SET:  # submitted, but not waited for
            self.outbox.append(handle)
            return
        # `setdefault` is atomic, so of two threads, or a thread and its signal handler, only one enters the name.
        if self.pending.setdefault(key, handle) is not handle:
            raise UsageError(
                f"{title(request.kind, request.name)} is under way already: "
                "wait for it, or give this operation another name"
            )
        self.outbox.append(handle)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not (self.pending or self.outbox or self.decided or self.finished)

    @property
    def has_joined(self) -> bool:
        """Whether this rank has joined the world, and submits nothing until all ranks have."""
        return (0, JOIN_NAME) in self.pending

    @property
    def has_joined_only(self) -> bool:
        """Whether only joins wait for a decision. The other ranks may take any time until they join."""
        keys = list(self.pending)  # a copy made at once, since other threads may add keys meanwhile
        return bool(keys) and all(name == JOIN_NAME for _, name in keys)

    def describe(self) -> str:
        """The names in messages of the operations that wait for a decision."""
        handles = list(self.pending.values())
        if not handles:
            return "the engine"
        return handles[0].title + (f" and {len(handles) - 1} more" if len(handles) > 1 else "")

    # By the thread that has the turn ----------------------------------------------------------------------------------

    def place(self, handle: Handle) -> None:
        """Number the first operation in the outbox, which has no name. It is pending from here on."""
        process_set = handle.request.process_set
        place = self._places.get(process_set, 0)
        self._places[process_set] = place + 1
        handle.key = (process_set, place)
        self.pending[handle.key] = handle
        self._unnamed.setdefault(process_set, deque()).append(handle.key)

    def decide(self, message: bytes) -> None:
        """Queue the operations whose cache ids are in an "execute" message for execution, in its order."""
        keys, handles = self._keys, []
        cache_ids, plan = self._plans.get(message) or self._new_plan(message)
        for cache_id in cache_ids:
            key = keys.get(cache_id)
            if key is None:
                key = self._unnamed[self._requests[cache_id].process_set].popleft()
            handles.append(self.pending[key])
        if len(handles) == 1:
            self.decided.append(handles)
        else:
            self.decided.extend([handles[place] for place in places] for places in plan)
        for handle in handles:
            del self.pending[handle.key]  # only now: at an interrupt, it is in one of the queues

    def retune(self, threshold: int) -> None:
        """Fuse up to `threshold` bytes in operations that are decided later."""
        self._threshold = threshold
        self._plans.clear()

    def decide_new(self, request: Request, cache_id: int, taking_part: int = 0) -> None:
        """Queue the operation for execution that asked for `request`, which now has `cache_id` (unless it is -1).

        `taking_part` is the number of ranks whose elements count, if some have joined.
        """
        key: Key | None = None if request.name is None else (request.process_set, request.name)
        if cache_id >= 0:
            self._requests[cache_id] = request
            self._cache_ids[request] = cache_id
            if key is not None:
                self._keys[cache_id] = key
                self._latest[key] = request, cache_id
        if taking_part:
            self._decide_with_some(request, key, taking_part)
            return
        key = key or self._unnamed[request.process_set].popleft()
        self.decided.append([self.pending[key]])
        del self.pending[key]

    def decide_some(self, cache_ids: Sequence[int], taking_part: int) -> None:
        """Queue operations for execution one by one, with elements of `taking_part` ranks, since some have joined."""
        for cache_id in cache_ids:
            self._decide_with_some(self._requests[cache_id], self._keys.get(cache_id), taking_part)

    def _decide_with_some(self, request: Request, key: Key | None, taking_part: int) -> None:
        unnamed = self._unnamed.get(request.process_set)
        if key is None and unnamed:
            key = unnamed.popleft()
        handle = self.pending.get(key) if key is not None else None
        if handle is not None and request.kind == FORM_PROCESS_SET and handle.request != request:
            handle = key = None  # other ranks form a set of the same name as the pending one
        if handle is None:  # this rank has joined, or is not a member
            handle = stand_in(request)
        handle.taking_part = taking_part
        self.decided.append([handle])
        if key is not None:
            self.pending.pop(key, None)

    def all_joined(self, process_set: int, last: int, unnamed: int) -> None:
        """Finish a set's join: all its ranks have joined, `last` as the last, after `unnamed` unnamed operations."""
        self._places[process_set] = unnamed
        handle = self.pending.get((process_set, JOIN_NAME))
        if handle is not None:
            handle.given = last
            self.finish(handle)

    def next_of(self, cache_id: int) -> Handle:
        """The pending operation of a request: the oldest unnamed one of its process set, if it has no name."""
        key = self._keys.get(cache_id)
        return self.pending[self._unnamed[self._requests[cache_id].process_set][0] if key is None else key]

    def finish(self, handle: Handle) -> None:
        """Move a pending operation that has its results or its error to `finished`."""
        self.finished.append(handle)
        self._remove(handle)

    def begin(self, handle: Handle) -> None:
        """Queue a pending operation for execution by itself."""
        self.decided.append([handle])
        self._remove(handle)  # only now: at an interrupt, it is in one of the queues

    def _remove(self, handle: Handle) -> None:
        del self.pending[handle.key]
        if handle.request.name is None:
            self._unnamed[handle.request.process_set].remove(handle.key)

    def take_all(self) -> list[Handle]:
        """Remove and return everything that is not done, since nothing can complete any longer."""
        handles = [handle for batch in self.decided for handle in batch]
        self.decided.clear()
        # One by one: an operation that another thread enters meanwhile is taken as well or stays, but is never lost.
        while self.outbox:
            handles.append(self.outbox.popleft())
        while self.pending:
            handles.append(self.pending.popitem()[1])
        self._unnamed.clear()
        return [handle for handle in dict.fromkeys(handles) if not handle.done]  # a named one can be in two queues

    def site_of(self, key: Key) -> str:
        """The call site of a pending operation in user code, or "" if it is not known."""
        handle = self.pending.get(key)
        return "" if handle is None else handle.site or waiting_site(handle, handle.caller)

    def cache_ids_of(self, key: Key) -> list[int]:
        """The cache ids of all requests that ever had this name, or of all that have none."""
        process_set, name = key[0], key[1] if isinstance(key[1], str) else None
        requests = self._requests.items()
        return [each for each, request in requests if (request.process_set, request.name) == (process_set, name)]

    def _new_plan(self, message: bytes) -> tuple[list[int], list[list[int]]]:
        """Return the cache ids in an "execute" message, and the batches to fuse, as indices into these.

        The plan is kept: training repeats itself, so most messages come again.
        """
        cache_ids = unpack_ids(message)
        requests = [self._requests[cache_id] for cache_id in cache_ids]
        plan = fuse(
            range(len(requests)),
            key=lambda place: fusion_key(requests[place]) if requests[place].nbytes < FUSED_BELOW else None,
            nbytes=lambda place: requests[place].nbytes,
            threshold=self._threshold,
        )
        if len(self._plans) >= _KNOWN_PLANS:
            self._plans.clear()
        self._plans[message] = cache_ids, plan
        return cache_ids, plan


def _write_full_request(handle: Handle) -> None:
    """Encode a request that has no cache id yet, with its call site in user code, into `handle.full_request`."""
    handle.full_request = handle.request.encode(handle.site or call_site(handle.caller))
    if len(handle.full_request) > LARGEST_REQUEST:
        raise UsageError(
            f"a request of {len(handle.full_request)} bytes is too large to negotiate (limit {LARGEST_REQUEST}): "
            "split the group, or use shorter names"
        )
