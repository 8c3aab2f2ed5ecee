"""The aggregator: merges what a leader's children submit to the world, where it is the same.

Pure policy. A *source* is a rank, or a whole subtree whose submissions its own leader has merged. A *token* is what it
submits: a cache id, or a full request as it is sent. While all children submit the same tokens in the same order, the
tokens that all have submitted go up as the whole subtree's (see `Streams`). At the first difference, what is held back
goes up source by source, and so does everything after it, until every rank has submitted each name as often as all
others. (The requests need not be equal: if they differ, the operation fails on all ranks. An operation that is given up
stays so until the late ranks come.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from distrun.runtime.negotiation.matching.streams import Streams
from distrun.runtime.operations.request import Request

Token = int | bytes
Upward = tuple[int | None, list[Token]]
"""A source, or None for the whole subtree, and the tokens that go up as its own, in order."""


class Aggregator:
    """The tokens of one leader's subtree."""

    def __init__(self, children: Iterable[int], ranks_of: Callable[[int], Sequence[int]], ranks: Sequence[int]) -> None:
        """`children` are the sources that submit to this leader, and `ranks` are all ranks of the subtree."""
        self._streams: Streams[Token] = Streams(children)
        self._children = frozenset(children)
        self._ranks_of = ranks_of
        self._count = len(ranks)
        self._names: dict[int, str | None] = {}  # by cache id
        # By name, or None for all unnamed requests: how many more of them a rank has submitted than the rank with the
        # fewest. Empty if all ranks have submitted the same, apart from what is held back in the streams.
        self._ahead: dict[str | None, Counter[int]] = {}
        self._has_joined = False

    def submit(self, source: int, tokens: list[Token], now: float) -> list[Upward]:
        """Note what a source submits next, and return what goes up now."""
        if source in self._children and not self._ahead and not self._has_joined:
            ready = self._streams.submit(source, tokens, now)
            if ready is not None:
                return [(None, ready)] if ready else []
        upward = self.flush()
        upward.append((source, tokens))
        self._note(source, tokens)
        return upward

    def flush(self) -> list[Upward]:
        """Return what is held back, which goes up source by source."""
        if self._streams.oldest is None:
            return []
        upward: list[Upward] = []
        for source, token, _ in self._streams.drain():
            if upward and upward[-1][0] == source:
                upward[-1][1].append(token)
            else:
                upward.append((source, [token]))
        for some, tokens in upward:
            assert some is not None
            self._note(some, tokens)
        return upward

    def _note(self, source: int, tokens: Iterable[Token]) -> None:
        ranks = self._ranks_of(source)
        for token in tokens:
            name = self._names[token] if isinstance(token, int) else Request.decode(token)[0].name
            ahead = self._ahead.setdefault(name, Counter())
            ahead.update(ranks)
            if len(ahead) == self._count:
                ahead.subtract(list(ahead))
                self._ahead[name] = +ahead  # without those that are at zero
                if not self._ahead[name]:
                    del self._ahead[name]

    # What rank 0 decides ---------------------------------------------------------------------------------------------

    def defined(self, request: Request, cache_id: int) -> None:
        """Note the new cache id of a request."""
        self._names[cache_id] = request.name

    def joined(self) -> None:
        """Note that a rank has joined. Until all have joined, no operation is submitted by all ranks."""
        self._has_joined = True

    def all_joined(self) -> None:
        """Note that all ranks have joined. Everything submitted before is decided."""
        self._has_joined = False
        self._ahead.clear()
