"""The response cache of a rank: requests that were decided before, by cache id, so that they need not be sent again.

The coordinator gives a request its cache id when it is decided for the first time (see `Controller`). Later, the ranks
submit only the id. Ids are never reused or redefined, so nothing is ever invalidated: a rank that submits another shape
under an old name sends the new request in full.
"""

from __future__ import annotations

from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.operations.request import Request


class ResponseCache:
    """Requests and their cache ids. Any thread may look up. Only the thread that has the turn to make progress adds."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._cache_ids: dict[Request, int] = {}
        self.keys: dict[int, Key] = {}
        """The keys under which named requests are pending, by cache id."""
        self.latest: dict[Key, tuple[Request, int]] = {}
        """The last request of each name, and its cache id: comparing with it is faster than hashing."""

    def id_of(self, request: Request) -> int:
        """Return the cache id of an unnamed request, or -1 if it has none yet."""
        return self._cache_ids.get(request, -1)

    def id_under(self, key: Key, request: Request) -> int:
        """Return the cache id of a request that is not the latest under its name, or -1."""
        cache_id = self._cache_ids.get(request, -1)
        if cache_id >= 0:  # two requests may alternate under one name
            self.latest[key] = request, cache_id
        return cache_id

    def add(self, request: Request, cache_id: int, key: Key | None) -> None:
        """Note the new cache id of a request. `key` is its key, or None if it has no name."""
        self._requests[cache_id] = request
        self._cache_ids[request] = cache_id
        if key is not None:
            self.keys[cache_id] = key
            self.latest[key] = request, cache_id

    def request(self, cache_id: int) -> Request:
        """Return the request for a cache id."""
        return self._requests[cache_id]

    def ids_under(self, key: Key) -> list[int]:
        """Return the cache ids of all requests that ever had this key."""
        return [cache_id for cache_id, name in self.keys.items() if name == key]
