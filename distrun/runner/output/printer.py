"""The one thread that prints, so that a blocked terminal blocks no other thread.

Its queue needs no bound: an agent sends at most a window of unacknowledged output.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from distrun.runner.decisions import events
from distrun.runner.output.lines import Console, LineSplitter, LineStamper
from distrun.runner.output.sinks import RankFiles, Sink

if TYPE_CHECKING:
    from distrun.runner.output.panel import Panel

# Seconds before an unfinished line, such as the prompt of a debugger, is shown.
PARTIAL_LINE_TIMEOUT = 0.1

_GONE = (None, errno.EPIPE, errno.EIO, errno.EBADF)
_COLOURS = {"stdout": b"36", "stderr": b"31"}


@dataclass(frozen=True)
class Style:
    """The format of the output, and what is shown."""

    tags: bool = True
    """Whether each line begins with the rank that wrote it."""
    ranks: frozenset[int] | None = None
    """The ranks whose output is shown. None = all."""
    timestamps: bool = False
    """Whether each line, also in files, begins with the time of its arrival."""
    prompts: bool = False
    """Whether unfinished lines are shown after a moment even if the output is not a terminal."""
    hidden: frozenset[tuple[int, str]] = frozenset()
    """Pairs of rank and stream that are not shown, although the rank is in `ranks`."""

    first_server: int | None = None
    """The number of the first process that is a parameter server instead of a rank. None = without servers."""

    def tag(self, rank: int) -> bytes:
        """Return the tag in front of a rank's lines: `[3]`, or `[server 1]`."""
        first = self.first_server
        return b"[%d]" % rank if first is None or rank < first else b"[server %d]" % (rank - first)

    def shows(self, rank: int, stream: str) -> bool:
        """Whether a stream of a rank is shown."""
        return (self.ranks is None or rank in self.ranks) and (rank, stream) not in self.hidden


class Printer:
    """Prints the output of ranks and the launcher's lines, in its own thread."""

    def __init__(
        self,
        stdout: Sink,
        stderr: Sink,
        style: Style = Style(),
        files: RankFiles | None = None,
        post: Callable[[events.Event], None] = lambda event: None,
        panel: Panel | None = None,
    ) -> None:
        """
        Args:
            stdout, stderr: the sinks to print to.
            style: the format of the output.
            files: additional files for all output.
            post: is called by the printing thread with an event when printing fails or is done.
            panel: the panel at the bottom of the terminal. None = without one.
        """
        self._sinks = {"stdout": stdout, "stderr": stderr}
        self._style = style
        self._files = files
        self._post = post
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()  # what the thread does next
        self._is_over = False
        self._splitters: dict[tuple[int, str], LineSplitter] = {}
        self._held_since: dict[tuple[int, str], float] = {}
        self._stampers: defaultdict[tuple[int, str], LineStamper] = defaultdict(LineStamper)
        self._closed: set[str] = set()
        self._panel = panel
        if panel is not None:
            panel.on_request(lambda: self._queue.put(self._paint))
        consoles = {sink.identity: Console(sink.is_terminal) for sink in (stdout, stderr)}
        self._consoles = {stream: consoles[sink.identity] for stream, sink in self._sinks.items()}
        self._thread = threading.Thread(target=self._run, name="distrun printer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def output(
        self, rank: int, stream: str, data: bytes, acknowledge: Callable[[int], None], is_shown: bool = True
    ) -> None:
        """Print a rank's output to `stream`, "stdout" or "stderr", or to its file only if it is not to be shown, and
        acknowledge it when that is done. Does not block.
        """
        self._queue.put(partial(self._print, rank, stream, data, acknowledge, is_shown))

    def say(self, text: str) -> None:
        """Print a line of the launcher on stderr, dimmed. Does not block."""
        line = self._stamp() + self._coloured("stderr", b"2", text.encode(errors="surrogateescape"))
        self._queue.put(partial(self._say, line))

    def close(self, failure_report: str | None = None) -> None:
        """Print the remaining output, including unfinished lines, and the failure report last. Then post `Printed` and
        end the thread. Does not block.
        """
        self._queue.put(partial(self._finish, failure_report))

    def _run(self) -> None:
        try:
            while not self._is_over:
                self._next()()
                self._show_unfinished(time.monotonic() - PARTIAL_LINE_TIMEOUT)
        finally:
            if self._files is not None:
                self._files.close()
            self._post(events.Printed())

    def _next(self) -> Callable[[], None]:
        """Wait for the next item, and show lines that have been unfinished for too long meanwhile."""
        while self._held_since:
            wait = min(self._held_since.values()) + PARTIAL_LINE_TIMEOUT - time.monotonic()
            try:
                return self._queue.get(timeout=max(0.0, wait))
            except Empty:
                self._show_unfinished(time.monotonic() - PARTIAL_LINE_TIMEOUT)
        return self._queue.get()

    def _print(self, rank: int, stream: str, data: bytes, acknowledge: Callable[[int], None], is_shown: bool) -> None:
        if self._files is not None:
            self._keep(self._files, rank, stream, data)
        if is_shown and self._style.shows(rank, stream):
            key = rank, stream
            splitter = self._splitters.setdefault(key, LineSplitter())
            self._show(key, splitter.feed(data))
            if not splitter.has_partial:
                self._held_since.pop(key, None)
            elif self._style.prompts or self._sinks[stream].is_terminal:
                self._held_since.setdefault(key, time.monotonic())
        acknowledge(len(data))

    def _keep(self, files: RankFiles, rank: int, stream: str, data: bytes) -> None:
        if self._style.timestamps:
            data = self._stampers[rank, stream].feed(data, self._stamp())
        try:
            files.write(rank, stream, data)
        except OSError as error:  # such as a full disk: the training matters more than a copy of its output
            self._files = None
            self._write("stderr", f"distrun: --output-dir is no longer written: {error.strerror}\n".encode())

    def _show_unfinished(self, before: float) -> None:
        for key in [key for key, since in self._held_since.items() if since <= before]:
            del self._held_since[key]
            self._show(key, [self._splitters[key].flush()])

    def _say(self, line: bytes) -> None:
        self._write("stderr", self._consoles["stderr"].end_line() + line + b"\n")

    def _finish(self, failure_report: str | None) -> None:
        """Show every unfinished line, and the report. With tags or times, which mark whole lines, also end the line."""
        self._is_over = True
        for key, splitter in self._splitters.items():
            if splitter.has_partial:
                self._show(key, [splitter.flush()])
        self._held_since.clear()
        self._remove_panel()
        for stream, console in self._consoles.items():
            if self._style.tags or self._style.timestamps:
                self._write(stream, console.end_line())
        if failure_report is not None:
            self._say(failure_report.encode(errors="surrogateescape"))

    def _show(self, key: tuple[int, str], pieces: list[bytes]) -> None:
        rank, stream = key
        if self._panel is not None and self._panel.identity == self._sinks[stream].identity:
            pieces = self._panel.whole(key, pieces)
            if not pieces:
                if self._panel.has_news:
                    self._paint()
                return
        tag = self._coloured(stream, _COLOURS[stream], self._style.tag(rank)) + b" " if self._style.tags else b""
        self._write(stream, self._consoles[stream].compose(key, self._stamp() + tag, pieces))

    def _paint(self) -> None:
        for stream in ("stderr", "stdout"):
            if self._panel is not None and self._sinks[stream].identity == self._panel.identity:
                self._write_to(stream, self._panel.around(b""))
                return

    def _remove_panel(self) -> None:
        """Print the lines that the panel has kept, and remove the panel."""
        if self._panel is None:
            return
        left = self._panel.unfinished()
        self._panel.show(())
        self._paint()
        self._panel = None
        for key, text in left:
            self._show(key, [text])

    def _stamp(self) -> bytes:
        """Return the time stamp for a line, in local time, such as `2030-01-31 09:00:00.000 `, or b"" if not wanted."""
        if not self._style.timestamps:
            return b""
        return datetime.now().isoformat(" ", "milliseconds").encode() + b" "

    def _coloured(self, stream: str, colour: bytes, text: bytes) -> bytes:
        if self._sinks[stream].is_terminal and not os.environ.get("NO_COLOR"):
            return b"\x1b[" + colour + b"m" + text + b"\x1b[0m"
        return text

    def _write(self, stream: str, data: bytes) -> None:
        if data and self._panel is not None and self._panel.identity == self._sinks[stream].identity:
            data = self._panel.around(data)
        self._write_to(stream, data)

    def _write_to(self, stream: str, data: bytes) -> None:
        if not data or stream in self._closed:
            return
        try:
            self._sinks[stream].write(data)
        except (OSError, ValueError) as error:
            self._closed.add(stream)
            reason = ""  # the reader is gone, or the stream closed
            if isinstance(error, OSError) and error.errno not in _GONE:
                reason = f"{stream} cannot be written: {error.strerror}"
            self._post(events.OutputClosed(reason))
