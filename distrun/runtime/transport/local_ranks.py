"""Local ranks: some ranks of one host, or all, and the words that each shows the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from distrun.runtime.operations.timeouts import Timeouts
from distrun.runtime.transport.network import Network
from distrun.runtime.transport.shared_memory.doorbell import SEES_STORES_IN_ORDER, Doorbell, fence
from distrun.runtime.transport.shared_memory.segment import Heap, Segment

FEW_RANKS = 8
"""Ranks that wake each other at a barrier as they arrive."""


class LocalRanks(ABC):
    """Some ranks of one host as one of them sees them.

    They are numbered by position: `ranks[i]` is the world rank of number i, in rising order; `own` is our number.
    """

    def __init__(
        self,
        own: int,
        ranks: Sequence[int],
        segments: Sequence[Segment],
        heap: Heap,
        bells: Sequence[Doorbell],
        timeouts: Timeouts,
        network: Network | None,
    ) -> None:
        """
        Args:
            segments: by position, as are the bells.
            heap: the heap of our own segment.
            network: given where the job has more hosts than this one.
        """
        self.own = own
        self.ranks = tuple(ranks)
        self.size = len(self.ranks)
        self.others = [index for index in range(self.size) if index != own]
        self.segments = list(segments)
        self.mine = self.segments[own]
        self.heap = heap
        self.bells = list(bells)
        self.timeouts = timeouts
        self.network = network

    def _open(self, words: Sequence[memoryview], epoch: int, lines: int, stage: int) -> None:
        """Begin to exchange.

        Args:
            words: the memory in which each rank shows its words, by position.
            epoch: the place of the number of the exchange among the words.
            lines: the place of the first line.
            stage: the offset of the two staging buffers in every segment.
        """
        self.stage = stage
        self._epoch = 0
        self._epoch_place = epoch
        self._line_start = lines
        self._line_words = self.mine.layout.line_words
        self._words = words[self.own]
        self._all_words = list(words)
        self._their_words = [words[index] for index in self.others]
        self._their_bells = [self.bells[index] for index in self.others]
        self._rings_at_once = self.size <= FEW_RANKS or not SEES_STORES_IN_ORDER

    # The exchange ---------------------------------------------------------------------------------------------------
    #
    # A barrier at which every rank shows the others a line of words. Everybody writes a line, then the number of the
    # exchange; and goes on when all numbers have come as far. There are two lines, used in turn: a line is written
    # again two exchanges later, which its owner reaches only after everybody arrived at the one between, that is, has
    # read it. The same holds for the two staging buffers, which are used in step with the lines.
    #
    # A few ranks wake each other as they arrive: a rank that was woken too soon looks again, and is awake when the last
    # one comes. Of many, the last to arrive wakes the others, and nobody else does: each of them would be woken by all
    # that come before. A rank that publishes its number looks at all others after that, with a fence between; of those
    # that arrive at the same time, one at least sees that all have come.

    @property
    def parity(self) -> int:
        """Which line and which staging buffer the *next* exchange uses."""
        return (self._epoch + 1) & 1

    def exchange(self, words: Sequence[int], what: str) -> list[Sequence[int]]:
        """Show `words` (64-bit integers, at most `Layout.line_words`) to all; everybody's, by position.

        `what` names the operation in stall reports.

        Raises:
            JobAbortedError: one of these ranks ended, left or failed before it arrived.
            StallError: it did not arrive within the stall timeout.
        """
        self._epoch = epoch = self._epoch + 1
        start = self._line_start + (epoch & 1) * self._line_words
        count = len(words)
        mine = self._words
        for index in range(count):
            mine[start + index] = words[index]
        place = self._epoch_place
        mine[place] = epoch
        if self._rings_at_once:
            for bell in self._their_bells:
                bell.ring()
        else:
            fence()
        for words_of_peer in self._their_words:
            if words_of_peer[place] < epoch:
                self._await(epoch, what)
                break
        else:
            if not self._rings_at_once:
                for bell in self._their_bells:
                    bell.ring()
        stop = start + count
        return [line[start:stop] for line in self._all_words]

    def _await(self, epoch: int, what: str) -> None:
        """Wait until all have arrived at an exchange."""
        place, missing = self._epoch_place, list(self._their_words)

        def have_come() -> bool:
            while missing and missing[-1][place] >= epoch:
                missing.pop()
            return not missing

        self.wait(have_come, lambda: self._lagging(epoch, what))

    def _lagging(self, epoch: int, what: str) -> str:
        late = [index for index in self.others if self._all_words[index][self._epoch_place] < epoch]
        return f"{what}, which has begun and waits for {self.describe(late)}"

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Bytes that we use of the memory that we show the others, beyond what every rank needs."""

    # Waiting and telling --------------------------------------------------------------------------------------------

    @abstractmethod
    def wait(
        self,
        ready: Callable[[], bool],
        what: Callable[[], str],
        until: float | None = None,
        timeouts: Timeouts | None = None,
    ) -> bool:
        """Wait until `ready()`; False when the monotonic time `until` came first.

        Args:
            ready: becomes true through something that one of these ranks writes before it rings our bell.
            what: says, for messages, what is waited for.
            until: a time of our clock.
            timeouts: other ones than the job's.

        Raises:
            JobAbortedError: one of these ranks left, or any rank failed or ended, and `ready()` is still false.
            StallError: the stall timeout is over.
        """

    @abstractmethod
    def describe(self, indices: Sequence[int]) -> str:
        """Name ranks for people: `rank 1 (process 4242, stopped by a signal)`."""
