"""The output of trials: written to a file for each, searched for the metric, and the end of each rank's stderr kept."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from distrun.runner.decisions.failure_report import StderrTails
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.tools.sweep.policy.trials import Trial

# A unit right behind a number is skipped. Text such as 1,234.5 or 12:30 or 45/100 is not read at all, because half of
# it would be a wrong number. None of these patterns takes more than linear time, whatever the line contains.
_NUMBER = (
    rb"([-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?(?=(?!e[-+]?\d)[a-z]*(?!\w|[.,:/']\d))"
    rb"|(?:nan|inf(?:inity)?)(?!\w)))"
)
_LONGEST = 1 << 16  # bytes of a line that are kept until it ends
_WORDS = 256  # bytes at the end of a piece of a longer line: the metric's name there may belong to the next piece


class Metric:
    """Finds the last number that is printed after a name: `loss: 0.12`, `loss=0.12`, `"loss": 0.12`."""

    def __init__(self, name: str) -> None:
        """`name` must be a whole word: `loss` does not match `val_loss`."""
        end = rb"(?![\w.-])" if name[-1:].isalnum() or name.endswith("_") else b""
        word = rb"(?<![\w.-])" + re.escape(os.fsencode(name)) + end
        self._pattern = re.compile(word + rb"[\"']?(?:\s*[:=])?\s*" + _NUMBER, re.IGNORECASE)

    def last(self, line: bytes) -> float | None:
        """Return the last number after the name in a line, or None if there is none."""
        found = self._pattern.findall(line)
        return float(found[-1]) if found else None


class _Stream:
    """The output of a running rank."""

    def __init__(self, trial: int, rank: int, file: BinaryIO | None, tag: bytes) -> None:
        self.trial = trial
        self.rank = rank
        self.file = file
        self.tag = tag
        self._before = {FrameKind.STDOUT: b"", FrameKind.STDERR: b""}
        self._unfinished = {FrameKind.STDOUT: bytearray(), FrameKind.STDERR: bytearray()}

    def lines(self, kind: FrameKind, payload: bytes) -> list[bytes]:
        """Return the lines that end in a payload, with their line ends. A progress bar ends its lines with \\r."""
        unfinished = self._unfinished[kind]
        if unfinished.endswith(b"\r"):  # perhaps the first half of \r\n
            del unfinished[-1:]
            payload = b"\r" + payload
        done = payload.splitlines(keepends=True)
        rest = done.pop() if done and not done[-1].endswith(b"\n") else b""
        if done:
            done[0] = bytes(unfinished) + done[0]
            unfinished.clear()
        unfinished += rest
        if len(unfinished) > _LONGEST:
            end = unfinished.rfind(b" ") + 1 or len(unfinished)  # if possible, not in the middle of a number
            done.append(bytes(unfinished[:end]))
            del unfinished[:end]
        return done

    def last_lines(self, kind: FrameKind) -> list[bytes]:
        """Return the rest, a line without an end, if there is one."""
        return [bytes(line)] if (line := self._unfinished[kind]) else []

    def with_words_before(self, kind: FrameKind, line: bytes) -> bytes:
        """Return a line, preceded by the last words of the piece before, if it is a piece of one that was too long."""
        whole = self._before[kind] + line
        # Whole words only: the end of val_loss must not match loss.
        self._before[kind] = b"" if line.endswith((b"\n", b"\r")) else whole[-_WORDS:].partition(b" ")[2]
        return whole


class TrialOutput:
    """Keeps what the ranks of trials write. Any thread may call its methods."""

    def __init__(
        self,
        folder: Path,
        metric: Metric | None,
        measured: Callable[[int, float], None],
        warn: Callable[[str], None],
    ) -> None:
        """
        Args:
            folder: the folder for the files, such as `trial-7.log`.
            metric: finds values in the output. None = the output is not searched.
            measured: called with the number of a process and the value that it has printed.
            warn: called once with a sentence, if trials run without a file.
        """
        self.tails = StderrTails()
        self._folder = folder
        self._metric = metric
        self._measured = measured
        self._warn = warn
        self._has_warned = False
        self._streams: dict[int, _Stream] = {}
        self._files: dict[int, BinaryIO] = {}
        self._lock = threading.Lock()

    def path(self, trial: Trial) -> Path | None:
        """Return the path of a running trial's file, or None if it has none."""
        return self._path(trial) if trial.number in self._files else None

    def begin(self, trial: Trial) -> None:
        """Open the file of a trial that is about to begin, and expect output from its ranks."""
        file = self._opened(trial)
        with self._lock:
            self._forget(trial.number)  # an attempt that lost its host was not ended by `end`
            if file is not None:
                self._files[trial.number] = file
            for member in trial.members:
                tag = b"[%d] " % member.rank if len(trial.members) > 1 else b""
                self._streams[member.process] = _Stream(trial.number, member.rank, file, tag)

    def take(self, frame: Frame) -> None:
        """Keep the output of a process. Spares' output is dropped."""
        if frame.kind is FrameKind.STDERR:
            self.tails.record(frame.process, frame.payload)
        with self._lock:
            if (stream := self._streams.get(frame.process)) is not None:
                self._keep(frame.process, stream, frame.kind, stream.lines(frame.kind, frame.payload))

    def exited(self, process: int) -> None:
        """Note that a process has exited, and all its output has come."""
        with self._lock:
            if (stream := self._streams.pop(process, None)) is not None:
                for kind in (FrameKind.STDOUT, FrameKind.STDERR):
                    self._keep(process, stream, kind, stream.last_lines(kind))

    def end(self, trial: Trial) -> None:
        """Close the file of a trial, and forget its ranks' output."""
        with self._lock:
            self._forget(trial.number)
            for member in trial.members:
                self.tails.forget(member.process)

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()
            self._streams.clear()

    def _forget(self, trial: int) -> None:
        """Close the file of a trial, and forget its ranks."""
        for process in [process for process, stream in self._streams.items() if stream.trial == trial]:
            del self._streams[process]
            self.tails.forget(process)
        if (file := self._files.pop(trial, None)) is not None:
            file.close()

    def _path(self, trial: Trial) -> Path:
        return self._folder / f"trial-{trial.number}.log"

    def _opened(self, trial: Trial) -> BinaryIO | None:
        path = self._path(trial)
        try:
            return path.open("ab" if trial.attempts > 1 else "wb", buffering=0)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                self._warn(
                    f"what trial {trial.number} writes is kept in no file, as {path} cannot be written: "
                    f"{error.strerror}; this is not said again of others"
                )
            return None

    def _keep(self, process: int, stream: _Stream, kind: FrameKind, lines: list[bytes]) -> None:
        if not lines:
            return
        if stream.file is not None:
            ended = (line if line.endswith((b"\n", b"\r")) else line + b"\n" for line in lines)
            with suppress(OSError):  # a full disk must not end a sweep
                stream.file.write(b"".join(stream.tag + line for line in ended))
        if self._metric is not None and stream.rank == 0:
            values = [self._metric.last(stream.with_words_before(kind, line)) for line in lines]
            if found := [value for value in values if value is not None]:
                self._measured(process, found[-1])
