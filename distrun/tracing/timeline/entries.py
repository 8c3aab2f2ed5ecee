"""The entries of a trace file: slices and counters of a rank, as JSON objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from distrun.tracing.timeline.slices import COMMUNICATION, FIRST_OPERATION, TRAINING, Slice

FIRST_PROCESS = 5_000_000
"""Rank 0's process number in the file, above Linux's process ids and the numbers of GPUs in torch.profiler's traces."""

_MOST_TEXTS = 4096

_ROW_NAMES = {TRAINING: "training", COMMUNICATION: "communication"}


class RankEntries:
    """Makes the entries of one rank."""

    def __init__(self, rank: int, host: str, shift: int) -> None:
        """Args: `shift` has the nanoseconds to add to the clock of the slices for the clock of the file."""
        self._rank = rank
        self._host = host
        self._process = FIRST_PROCESS + rank
        self._shift = shift
        self._texts: dict[str, str] = {}
        self._named: set[int] = set()

    def head(self) -> Iterator[str]:
        """Yield the entries that name the rank and its rows."""
        yield self._meta("process_name", 0, name=f"rank {self._rank} on {self._host}")
        yield self._meta("process_sort_index", 0, sort_index=self._rank)
        for row, name in _ROW_NAMES.items():
            yield from self._row(row, name)

    def of(self, piece: Slice, operations: Mapping[str, int]) -> Iterator[str]:
        """Yield the entries of a slice, with the name of its row if the row is new."""
        row, args = piece.row, piece.args
        if row >= FIRST_OPERATION and row not in self._named:
            self._named.add(row)
            yield from self._row(row, next(name for name, number in operations.items() if number == row))
        # Whole microseconds, rounded down at both ends, so that nested slices stay nested.
        begin, end = (piece.begin + self._shift) // 1000, (piece.end + self._shift) // 1000
        if piece.begin == piece.end:
            kind, extent = "i", '"s":"t"'
        elif begin < end:
            kind, extent = "X", f'"dur":{end - begin}'
        else:
            return
        told = ",".join(f"{self._text(key)}:{self._text(value)}" for key, value in args)
        rest = f',"args":{{{told}}}}}' if told else "}"
        name = self._text(piece.name)
        yield f'{{"ph":"{kind}","pid":{self._process},"tid":{row},"ts":{begin},{extent},"name":{name}{rest}'

    def counters(self, now: int, span: int, steps: int, waiting: int, waiting_for_input: int) -> Iterator[str]:
        """Yield the counters for the `span` before `now`: steps, and nanoseconds of waiting in it."""
        # Perfetto shows a counter under its name followed by the name of the value: "% waiting for input".
        waits = {"for other ranks": waiting, "for input": waiting_for_input}
        shares = {key: min(100.0, 100 * time / span) for key, time in waits.items()}
        for name, values in (("steps", {"per second": steps * 1e9 / span}), ("% waiting", shares)):
            told = ",".join(f'"{key}":{value:.4g}' for key, value in values.items())
            yield (
                f'{{"ph":"C","pid":{self._process},"ts":{(now - span + self._shift) // 1000},"name":"{name}",'
                f'"args":{{{told}}}}}'
            )

    def _row(self, row: int, name: str) -> Iterator[str]:
        yield self._meta("thread_name", row, name=name)
        yield self._meta("thread_sort_index", row, sort_index=row)

    def _meta(self, kind: str, row: int, **args: str | int) -> str:
        entry = {"ph": "M", "pid": self._process, "tid": row, "name": kind, "args": args}
        return json.dumps(entry, separators=(",", ":"))

    def _text(self, value: str | int) -> str:
        """Return a value as JSON. Texts are cached, since most of them are repeated."""
        if isinstance(value, int):
            return str(value)
        text = self._texts.get(value)
        if text is None:
            if len(self._texts) > _MOST_TEXTS:
                self._texts.clear()
            text = self._texts[value] = json.dumps(value)
        return text
