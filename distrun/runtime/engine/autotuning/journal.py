"""The journal of a tuner: the log file, step by step, and one printed line at the end."""

from __future__ import annotations

import csv
import logging
import sys
from dataclasses import asdict

from distrun.runtime.engine.autotuning.chosen import Tuned, note
from distrun.runtime.engine.autotuning.policy import Outcome, Row, words
from distrun.tracing import recording
from distrun.tracing.layout import AUTOTUNED

log = logging.getLogger("distrun")

COLUMNS = ("world", "tuned", "step", "setting", "seconds", "decision")
"""The columns of the log file."""


class Journal:
    """The journal of one tuner. `file` is None where another rank writes."""

    def __init__(self, what: str, world: int, file: str | None, tells: bool) -> None:
        """Rows are appended to `file`, if there is one. `tells`: whether this rank prints the line at the end."""
        self._what = what
        self._world = world
        self._file = file
        self._tells = tells
        self._rows: list[tuple[object, ...]] = []  # not written yet

    def add(self, row: Row) -> None:
        """Log a step. The file is written only when something was decided, so that writing disturbs few steps."""
        seconds = "" if row.seconds is None else f"{row.seconds:.6f}"
        self._rows.append((row.step, words(row.setting), seconds, row.decision))
        if row.decision and row.seconds is not None:
            self._write()

    def end(self, outcome: Outcome) -> None:
        """Record the outcome, and print and log it if this rank does that."""
        tuned = Tuned(self._what, world=self._world, **asdict(outcome))
        note(tuned)
        if self._tells:
            if recording.ring is not None:
                recording.ring.remark(f"{AUTOTUNED}{tuned}")
            self._rows.append((outcome.steps, words(outcome.setting), "", f"end: {tuned}"))
            self._write()
            print(f"distrun: autotune: {tuned}", file=sys.stderr, flush=True)

    def _write(self) -> None:
        """Append the rows to the file, which other processes may be reading."""
        rows, self._rows = self._rows, []
        if not self._file:
            return
        try:
            with open(self._file, "a", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                if not file.tell():
                    writer.writerow(COLUMNS)
                writer.writerows((self._world, self._what, *row) for row in rows)
        except OSError as error:
            log.warning("autotune: %s cannot be written: %s; tuning goes on without it", self._file, error.strerror)
            self._file = None


def start_log(file: str) -> None:
    """Empty the log file, which may be an earlier job's."""
    try:
        with open(file, "w", newline="") as empty:
            csv.writer(empty, lineterminator="\n").writerow(COLUMNS)
    except OSError as error:
        log.warning("autotune: %s cannot be written: %s; correct DISTRUN_AUTOTUNE_LOG", file, error.strerror)
