"""Local ranks: all or some of the ranks of one host, and the words that they exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from distrun.runtime.operations.timeouts import Timeouts
from distrun.runtime.transport.network import Network
from distrun.runtime.transport.shared_memory.doorbell import SEES_STORES_IN_ORDER, Doorbell, fence, full_fence
from distrun.runtime.transport.shared_memory.segment import Heap, Segment

FEW_RANKS = 8
"""Up to this many ranks wake each other at a barrier as they arrive. With more, only the last one wakes the others."""


class LocalRanks(ABC):
    """All or some of the ranks of one host, as one of them sees them.

    They are numbered by position: `ranks[i]` is the world rank of number i, in rising order. `own` is the number of
    this rank.
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
        """`segments` and `bells` are by position, and `heap` is the one of this rank's segment. `network` is given if
        the job has several hosts."""
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
        """Set up the memory of exchanges: `words` is where each rank shows its words, by position, `epoch` the index of
        the exchange's number in them, `lines` that of the first line, `stage` the offset of the staging buffers in each
        segment."""
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
    # A barrier where every rank shows the others a line of words. Every rank writes its line, then the number (epoch)
    # of the exchange, and waits until the numbers of all ranks are at least as high. There are two lines, used in turn:
    # a line is overwritten two exchanges later. Its owner gets there only after all ranks have arrived at the exchange
    # between, and therefore have read the line. The same holds for the two staging buffers, which alternate with the
    # lines.
    #
    # A few ranks wake each other as they arrive: a rank that is woken early checks again, and is awake when the last
    # one arrives. With many ranks, only the last to arrive wakes the others: otherwise each would be woken by every
    # later arrival. A rank publishes its number, executes a fence, and then reads the numbers of all others. So if
    # several arrive at the same time, at least one of them sees that all have arrived.

    @property
    def parity(self) -> int:
        """The index, 0 or 1, of the line and the staging buffer that the *next* exchange uses."""
        return (self._epoch + 1) & 1

    def exchange(self, words: Sequence[int], what: str) -> list[Sequence[int]]:
        """Show `words` to all ranks, and return the words of each rank, by position. This is a barrier.

        Args:
            words: 64-bit integers, at most `Layout.line_words`, equally many on all ranks.
            what: names the operation in stall reports.

        Raises:
            JobAbortedError: one of these ranks ended, left or failed before it arrived.
            StallError: one of these ranks did not arrive within the stall timeout.
        """
        self._epoch = epoch = self._epoch + 1
        start = self._line_start + (epoch & 1) * self._line_words
        count = len(words)
        mine = self._words
        for index in range(count):
            mine[start + index] = words[index]
        place = self._epoch_place
        if not SEES_STORES_IN_ORDER:
            full_fence()  # the words, and staged elements, before the number that announces them
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
        if not SEES_STORES_IN_ORDER:
            full_fence()  # the numbers before what they announce
        stop = start + count
        return [line[start:stop] for line in self._all_words]

    def _await(self, epoch: int, what: str) -> None:
        """Wait until all ranks have arrived at the exchange number `epoch`."""
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
        """The bytes of shared memory that this rank uses, beyond what every rank needs."""

    # Waiting --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def wait(
        self,
        ready: Callable[[], bool],
        what: Callable[[], str],
        until: float | None = None,
        timeouts: Timeouts | None = None,
    ) -> bool:
        """Wait until `ready()` is true. Return False if the time `until` comes first.

        Args:
            ready: becomes true by something that one of these ranks writes before it rings this rank's bell.
            what: describes, for messages, what is waited for.
            until: a time of this rank's clock, in seconds.
            timeouts: timeouts to use instead of the job's.

        Raises:
            JobAbortedError: one of these ranks left, or any rank failed or ended, and `ready()` is still false.
            StallError: the stall timeout has passed.
        """

    @abstractmethod
    def describe(self, indices: Sequence[int]) -> str:
        """Return a text that names ranks: `rank 1 (process 4242, stopped by a signal)`."""
