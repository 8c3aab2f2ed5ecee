"""The response cache of a rank: requests decided before, by cache id, so that they need not be sent again.

The coordinator gives a request its cache id when it is decided for the first time (see `Controller`); from then on
the ranks submit the id alone. Ids are never reused or redefined, so nothing is ever invalidated: a rank that submits
another shape under an old name sends the new request in full.
"""

from __future__ import annotations

from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.operations.request import Request


class ResponseCache:
    """Requests and their cache ids. Any thread asks; the thread that has the turn to make progress adds."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._cache_ids: dict[Request, int] = {}
        self._named: dict[Key, tuple[Request, int]] = {}  # what a name last stood for: comparing is faster than hashing
        self._keys: dict[int, Key] = {}

    def id_of(self, request: Request) -> int:
        """Return the cache id of an unnamed request; -1 if it has none yet."""
        return self._cache_ids.get(request, -1)

    def id_under(self, key: Key, request: Request) -> int:
        """Return the cache id of a request with a name; -1 if it has none yet."""
        known = self._named.get(key)
        if known is None or known[0] != request:  # two requests may take turns under one name
            known = request, self._cache_ids.get(request, -1)
            if known[1] >= 0:
                self._named[key] = known
        return known[1]

    def add(self, request: Request, cache_id: int, key: Key | None) -> None:
        """Note the cache id that a request has from now on; `key` is that of its name, None if it has no name."""
        self._requests[cache_id] = request
        self._cache_ids[request] = cache_id
        if key is not None:
            self._keys[cache_id] = key
            self._named[key] = request, cache_id

    def request(self, cache_id: int) -> Request:
        """Return the request that has a cache id."""
        return self._requests[cache_id]

    def key(self, cache_id: int) -> Key | None:
        """Return the key under which a request is pending; None if it has no name."""
        return self._keys.get(cache_id)

    def ids_under(self, key: Key) -> list[int]:
        """Return the cache ids of all requests that a name has stood for."""
        return [cache_id for cache_id, name in self._keys.items() if name == key]
