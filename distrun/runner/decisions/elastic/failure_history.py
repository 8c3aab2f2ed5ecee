"""The story of an elastic job: one line for each failure, told when the job cannot go on."""

from __future__ import annotations

from collections import deque

KEPT = 30  # failures; a job that runs for months has more, and the last ones say why it ended


class FailureHistory:
    """The last failures, in order."""

    def __init__(self, now: float) -> None:
        """Args: the time at which the job began."""
        self._began = now
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._count = 0

    def add(self, what: str, generation: int, now: float) -> None:
        """Add a failure: a sentence without a full stop."""
        self._count += 1
        where = f"generation {generation}" if generation else "at the start"
        self._lines.append(f"after {now - self._began:.1f} s, {where}: {what}")

    @property
    def last(self) -> str:
        """The line of the last failure."""
        return self._lines[-1]

    def forget(self, line: str) -> None:
        """Take a failure back if its line is still kept, for a better account of it."""
        if line in self._lines:
            self._lines.remove(line)
            self._count -= 1

    @property
    def lines(self) -> list[str]:
        """The failures, a line each."""
        lost = self._count - len(self._lines)
        return [*([f"({lost} earlier failures)"] if lost else []), *self._lines]
