"""The last output of each rank, in bounded memory, for those who ask for it while the job runs."""

from __future__ import annotations

import re
import threading
from collections import deque
from typing import NamedTuple

_TOTAL = 4 << 20  # bytes of all ranks together
_LEAST = 4 << 10  # bytes of each stream of a rank, however many ranks there are
_OVERHEAD = 128  # bytes that a piece takes besides its data
_END = re.compile(rb"\r?\n|\r")
Key = tuple[int, str]


class Piece(NamedTuple):
    """Bytes that a rank has written at once."""

    order: int
    rank: int
    stream: str
    data: bytes


class Recent:
    """The last output of all ranks. Whole lines are forgotten, the oldest of each stream first."""

    def __init__(self, size: int) -> None:
        """Args: `size` is the number of ranks."""
        self._most = max(_LEAST, _TOTAL // (2 * size))
        self._tails: dict[Key, _Tail] = {}
        self._pieces = 0
        self._status: int | None = None
        self._changed = threading.Condition()

    @property
    def ranks(self) -> int:
        """The highest rank that has written anything, plus one."""
        return max((rank for rank, _ in list(self._tails)), default=-1) + 1

    def add(self, rank: int, stream: str, data: bytes) -> None:
        """Take output of a rank (any thread)."""
        with self._changed:
            tail = self._tails.setdefault((rank, stream), _Tail())
            tail.add(Piece(self._pieces, rank, stream, data), self._most)
            self._pieces += 1
            self._changed.notify_all()

    def close(self, status: int) -> None:
        """Tell readers that nothing more comes, as the job has ended with this exit status."""
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def read(self, rank: int | None, seen: dict[Key, int]) -> tuple[list[Piece], int]:
        """Return what has come since a reader has read last, and how many bytes of that have been forgotten.

        Args:
            rank: the rank whose output is wanted. None = all.
            seen: what the reader has read, empty at first, which is updated.
        """
        found: list[Piece] = []
        lost = 0
        with self._changed:
            for key, tail in self._tails.items():
                if rank in (None, key[0]):
                    lost += max(0, tail.begin - seen.get(key, 0))
                    found += tail.after(seen.get(key, 0))
                    seen[key] = tail.end
        return sorted(found), lost

    def wait(self, pieces: int, seconds: float) -> tuple[int, int | None]:
        """Wait until there have been more pieces or the job is over. Return their number, and the exit status."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces > pieces or self._status is not None, seconds)
            return self._pieces, self._status


class _Tail:
    """The end of one stream: the bytes from `begin` to `end`, counted from its beginning."""

    def __init__(self) -> None:
        self.begin = self.end = 0
        self._pieces: deque[Piece] = deque()

    def add(self, piece: Piece, most: int) -> None:
        self._pieces.append(piece)
        self.end += len(piece.data)
        if self._weight() > most:
            self._forget(most // 2)  # rarely, as that copies

    def after(self, position: int) -> list[Piece]:
        """Return the pieces that begin at this position or later."""
        at, found = self.end, []
        for piece in reversed(self._pieces):
            if at <= position:
                break
            found.append(piece)
            at -= len(piece.data)
        return found

    def _weight(self) -> int:
        return self.end - self.begin + _OVERHEAD * len(self._pieces)

    def _forget(self, most: int) -> None:
        """Forget the first lines, so that `most` bytes are left at most."""
        piece = self._pieces[0]
        while self._weight() > most:
            piece = self._pieces.popleft()
            self.begin += len(piece.data)
        room = max(0, most - self._weight() - _OVERHEAD)
        ended = _END.search(piece.data, max(0, len(piece.data) - room - 1))
        while ended is None and self._pieces:  # the line goes on in the next piece
            piece = self._pieces.popleft()
            self.begin += len(piece.data)
            ended = _END.search(piece.data)
        if ended is not None and (rest := piece.data[ended.end() :]):
            self._pieces.appendleft(piece._replace(data=rest))
            self.begin -= len(rest)
