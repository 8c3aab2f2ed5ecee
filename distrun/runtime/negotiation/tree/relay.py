"""The relay: decides what a leader forwards of its subtree's messages, and of the messages for its subtree.

Pure policy: envelopes and messages go in and come out. What concerns all ranks of the job goes through the
`Aggregator`. What concerns a process set, or a single rank, goes up unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.decisions import LONGEST_LIST
from distrun.runtime.negotiation.tree import envelopes
from distrun.runtime.negotiation.tree.aggregator import Aggregator, Token
from distrun.runtime.operations.request import DISSOLVE_PROCESS_SET, FORM_PROCESS_SET, JOIN
from distrun.runtime.transport.control.control_tree import ControlTree

_KNOWN_STRETCHES = 1000


class Relay:
    """The relay of a leader other than rank 0."""

    def __init__(self, tree: ControlTree) -> None:
        self._tree = tree
        self._size = tree.size
        ours = tree.subtree(tree.rank)
        children = [*tree.local_ranks, *(self._size + child for child in tree.children)]
        self._aggregator = Aggregator(children, self._ranks_of, ours)
        self._of_sets: set[int] = set()  # the cache ids of requests to process sets other than the world
        # The tokens in messages of cache ids of the world, by message: training repeats itself, so most come again.
        self._stretches: dict[bytes, list[Token]] = {}
        self._for_all_below = envelopes.pack(envelopes.SUBTREE, tree.rank)
        self._survey = 0
        self._awaited: set[int] = set()  # the children that have not answered the survey

    def _ranks_of(self, source: int) -> Sequence[int]:
        return (source,) if source < self._size else self._tree.subtree(source - self._size)

    # Up -------------------------------------------------------------------------------------------------------------

    def message(self, source: int, message: bytes, now: float) -> Iterable[bytes]:
        """Return the envelopes that go up when `source` sends a message.

        A source is a rank, or `size` + the leader of a subtree if all ranks of the subtree send it.
        """
        stretch = self._stretches.get(message)
        if stretch is None:
            return self._new_message(source, message, now)
        upward = self._aggregator.submit(source, stretch, now)
        if upward == [(None, stretch)]:  # this was the last source to submit it, so the message is forwarded unchanged
            return (self._for_all_below + message,)
        return self._upward(upward) if upward else ()

    def _new_message(self, source: int, message: bytes, now: float) -> Iterator[bytes]:
        letter = message[:1]
        if letter == messages.CACHE_IDS:
            yield from self._cache_ids(source, message, now)
            return
        if letter == messages.FULL_REQUEST:
            request, _ = messages.decoded(message[1:])
            if not request.process_set and request.kind not in (FORM_PROCESS_SET, DISSOLVE_PROCESS_SET):
                if request.kind != JOIN:
                    yield from self._upward(self._aggregator.submit(source, [message[1:]], now))
                    return
                yield from self.flush()
                self._aggregator.joined()
        yield envelopes.pack(envelopes.ONE, source, message)

    def _cache_ids(self, source: int, message: bytes, now: float) -> Iterator[bytes]:
        cache_ids = messages.unpack_ids(message)
        of_sets = [cache_id for cache_id in cache_ids if cache_id in self._of_sets]
        tokens: list[Token] = [cache_id for cache_id in cache_ids if cache_id not in self._of_sets]
        if of_sets:
            yield envelopes.pack(envelopes.ONE, source, messages.pack_ids(messages.CACHE_IDS, of_sets))
        else:
            if len(self._stretches) >= _KNOWN_STRETCHES:
                self._stretches.clear()
            self._stretches[message] = tokens
        if tokens:
            yield from self._upward(self._aggregator.submit(source, tokens, now))

    def flush(self) -> Iterator[bytes]:
        """Yield envelopes with what is held back."""
        return self._upward(self._aggregator.flush())

    def _upward(self, upward: Iterable[tuple[int | None, list[Token]]]) -> Iterator[bytes]:
        for source, tokens in upward:
            for message in _messages_of(tokens):
                if source is None:
                    yield envelopes.pack(envelopes.SUBTREE, self._tree.rank, message)
                elif source < self._size:
                    yield envelopes.pack(envelopes.ONE, source, message)
                else:
                    yield envelopes.pack(envelopes.SUBTREE, source - self._size, message)

    # Down -----------------------------------------------------------------------------------------------------------

    def down(self, envelope: bytes) -> tuple[bytes, list[int], list[tuple[int, bytes]]]:
        """Return a message for one or several ranks, and its recipients: the ranks of this host, which may include this
        one, and the leaders below, with the envelope for each."""
        letter, number, ranks, message = envelopes.unpack(envelope)
        tree = self._tree
        if letter == envelopes.ONE:
            ranks = (number,)
        self.note(message)
        local = [rank for rank in ranks if rank in tree.local_ranks]
        further = sorted((tree.hop(rank), rank) for rank in ranks if rank not in tree.local_ranks)
        children: list[tuple[int, bytes]] = []
        for child, those in groupby(further, key=lambda pair: pair[0]):
            some = [rank for _, rank in those]
            children += [(child, packed) for packed in envelopes.pack_some(some, message)]
        return message, local, children

    def note(self, message: bytes) -> None:
        """Update the relay's state by a decision on its way down, before anything else goes up."""
        letter = message[:1]
        if letter == messages.EXECUTE:
            return
        if letter == messages.DEFINE:
            define = messages.unpack_define(message)
            if define.cache_id >= 0 and define.request.process_set:
                self._of_sets.add(define.cache_id)
            elif define.cache_id >= 0:
                self._aggregator.defined(define.request, define.cache_id)
        elif letter == messages.ALL_JOINED and not messages.unpack_all_joined(message).process_set:
            self._aggregator.all_joined()

    # Surveys --------------------------------------------------------------------------------------------------------

    def survey(self, number: int) -> Iterator[bytes]:
        """Yield what goes up when a survey asks for what is held back. The children have to be asked, too."""
        self._survey, self._awaited = number, set(self._tree.children)
        yield from self._answer()

    def surveyed(self, child: int, number: int) -> Iterator[bytes]:
        """Yield the envelopes that go up when a child has answered."""
        if number == self._survey and child in self._awaited:
            self._awaited.discard(child)
            yield from self._answer()

    def _answer(self) -> Iterator[bytes]:
        yield from self.flush()
        if not self._awaited:
            yield envelopes.pack(envelopes.FLUSHED, self._survey)


def _messages_of(tokens: Iterable[Token]) -> Iterator[bytes]:
    """Yield the messages that submit these tokens."""
    for kind, those in groupby(tokens, key=type):
        if kind is int:
            cache_ids = [token for token in those if isinstance(token, int)]
            for start in range(0, len(cache_ids), LONGEST_LIST):
                yield messages.pack_ids(messages.CACHE_IDS, cache_ids[start : start + LONGEST_LIST])
        else:
            for token in those:
                assert isinstance(token, bytes)
                yield messages.FULL_REQUEST + token
