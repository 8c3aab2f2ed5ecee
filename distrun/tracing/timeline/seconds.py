"""The seconds of a timeline, one after the other: which ones are shown, and how they are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

from distrun.tracing.timeline.entries import RankEntries
from distrun.tracing.timeline.options import TimelineOptions
from distrun.tracing.timeline.slices import INPUT, TRAINING, Slice
from distrun.tracing.timeline.thinning import Thinning
from distrun.tracing.timeline.trace_file import TraceFile

SECOND = 1_000_000_000
SLOW = 2.0
"""A step that takes this many times the median of the last ones is always shown."""
_COMPARED, _FEWEST = 101, 10
_LONG = SECOND // 2
"""The nanoseconds of a slice that is always shown."""

Emit = Callable[[Slice, Mapping[str, int]], None]


class _Rank:
    """The counts of a rank since they were written last."""

    def __init__(self, entries: RankEntries) -> None:
        self.entries = entries
        self.durations: deque[int] = deque(maxlen=_COMPARED)
        self.typical = 0.0
        self.steps = self.waiting = self.input = 0  # since the counters were written last

    def count(self, piece: Slice) -> bool:
        """Count a slice. Returns whether it is a slow step."""
        length = piece.end - piece.begin
        if piece.is_step:
            self.steps += 1
            is_slow = len(self.durations) >= _FEWEST and length > SLOW * self.typical
            self.durations.append(length)
            if len(self.durations) % _FEWEST == 0:
                self.typical = median(self.durations)
            return is_slow
        if piece.is_wait_for_rank:
            self.waiting += length
        elif piece.row == TRAINING and piece.name == INPUT:
            self.input += length
        return False


class Seconds:
    """Collects slices by the second that they end in, and writes the seconds that are shown."""

    def __init__(self, options: TimelineOptions, shift: int, base: int, now: int) -> None:
        """
        Args:
            options: the file and its limit.
            shift: the nanoseconds to add to the clock of the slices for the clock of the file.
            base: the time since 1970 when the clock of the file was 0.
            now: the time, by the clock of the slices.

        Raises:
            OSError: the file cannot be written.
        """
        self._shift = shift
        self._began = now
        self._file = TraceFile(options.file, {"baseTimeNanoseconds": base, "traceName": options.file})
        self._thinning = Thinning(options.limit)
        self._ranks: dict[int, _Rank] = {}
        self._pieces: dict[int, list[tuple[_Rank, Slice, Mapping[str, int]]]] = {}
        self._slow: set[int] = set()
        self._new: list[str] = []
        self._counted_until = now

    def rank(self, rank: int, host: str) -> Emit:
        """Return the function that takes the slices of a rank."""
        entries = RankEntries(rank, host, self._shift)
        known = self._ranks.setdefault(rank, _Rank(entries))
        known.entries = entries
        self._new += entries.head()
        return partial(self._take, known)

    def _take(self, rank: _Rank, piece: Slice, operations: Mapping[str, int]) -> None:
        second = (piece.end + self._shift) // SECOND
        if rank.count(piece):
            self._slow.add(second)
        self._pieces.setdefault(second, []).append((rank, piece, operations))

    def advance(self, until: int) -> None:
        """Write the seconds before `until`. No further slice can end in them."""
        for second in sorted(second for second in self._pieces if second < (until + self._shift) // SECOND):
            self._write(second, self._pieces.pop(second))
        self._count(until)

    def close(self, now: int, end: dict[str, object]) -> None:
        """Write the remaining slices, and the end of the file."""
        self.advance(now + 2 * SECOND)
        self._file.write(self._new)
        self._file.end |= end
        self._file.close()

    def _write(self, second: int, pieces: list[tuple[_Rank, Slice, Mapping[str, int]]]) -> None:
        written, elapsed = self._file.size, (second * SECOND - self._shift - self._began) / SECOND
        every = self._thinning.every(written, elapsed)
        is_slow = second in self._slow and self._thinning.may_show_slow(written)
        self._slow.discard(second)
        is_shown = every > 0 and (second % every == 0 or is_slow)
        if not is_shown:
            may = self._thinning.left(written) > 0
            pieces = [one for one in pieces if may and one[1].end - one[1].begin >= _LONG and one[1].row < 10]
        entries = [entry for rank, piece, rows in pieces for entry in rank.entries.of(piece, rows)]
        self._file.write([*self._new, *entries])
        self._new = []
        if is_shown:
            self._thinning.note(self._file.size - written)

    def _count(self, until: int) -> None:
        """Write the counters, and the longer the job has been running, the less often."""
        span = until - self._counted_until
        if span < max(SECOND, (until - self._began) // 600) or self._thinning.left(self._file.size) <= 0:
            return
        for rank in self._ranks.values():
            self._new += rank.entries.counters(until, span, rank.steps, rank.waiting, rank.input)
            rank.steps = rank.waiting = rank.input = 0
        self._counted_until = until
