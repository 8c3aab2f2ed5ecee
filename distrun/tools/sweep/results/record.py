"""The record of a sweep: `sweep.json` describes it, and `trials.jsonl` has the start and the end of each trial.

Each line of the latter is a JSON object, and the last line about a trial counts. If the launcher is killed, only the
running trials are lost.

A database would need a transaction per report, and Optuna's would need Optuna for grids, too.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distrun.errors import UsageError
from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.space.command_line import Template
from distrun.tools.sweep.space.ranges import Values, parse_range

_HEADER, _TRIALS = "sweep.json", "trials.jsonl"
_VERSION = 1


@dataclass(frozen=True)
class Header:
    """The facts that define a sweep."""

    words: list[str]
    fixed: list[str]
    parameters: dict[str, str]
    """The ranges as they are written on the command line."""
    kind: str
    """`search` or `grid`."""
    minimizes: bool
    seeds: int = 0
    """The number of seeds of each point of a grid. 0 = seeds are not varied."""
    ranks: int = 1
    trials: int | None = None
    """The requested number of trials. None = it was not given."""
    metric: str | None = None
    seed: int | None = None
    prune: bool = False
    prune_after: int = 2
    prune_factor: int = 3
    version: int = _VERSION

    @property
    def template(self) -> Template:
        """The command with its parameters."""
        parameters = {name: parse_range(name, text) for name, text in self.parameters.items()}
        return Template(tuple(self.words), tuple(self.fixed), parameters)

    def differences(self, other: Header) -> list[str]:
        """Return the names of the facts that differ, although a resumed sweep must keep them."""
        parts = {
            "command": (self.words, self.fixed) == (other.words, other.fixed),
            "set of parameters": self.parameters == other.parameters,
            "kind (--grid)": self.kind == other.kind,
            "direction (--maximize)": self.minimizes == other.minimizes,
            "number of seeds (--seeds)": self.seeds == other.seeds,
        }
        return [name for name, is_same in parts.items() if not is_same]


class Record:
    """The record, open for writing."""

    def __init__(self, folder: Path, header: Header) -> None:
        """Create the folder and the files, or open existing ones for appending.

        Raises:
            UsageError: they cannot be written, or another sweep writes them.
        """
        self.folder = folder
        self.problem: str | None = None
        """The reason why lines are missing in the file at present. None = none are missing."""
        self._unwritten = b""
        try:
            (folder / "logs").mkdir(parents=True, exist_ok=True)
            self._file = (folder / _TRIALS).open("ab", buffering=0)
        except OSError as error:
            raise _not_writable(folder, error) from None
        try:
            self._lock()
            write_whole(folder / _HEADER, json.dumps(asdict(header), indent=2) + "\n")
            if (folder / _TRIALS).read_bytes()[-1:] not in (b"", b"\n"):  # its launcher was killed, or the disk full
                self._file.write(b"\n")
        except OSError as error:
            self._file.close()
            raise _not_writable(folder, error) from None
        except UsageError:
            self._file.close()
            raise

    def _lock(self) -> None:
        """Lock the file against other sweeps until this process ends, where the file system has locks."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{str(self.folder)!r} is in use: another distrun sweep writes its results there; wait until it has "
                "ended, or give another directory by --output"
            ) from None
        except OSError:  # file systems without locks
            pass

    def began(self, trial: Trial, command: list[str]) -> None:
        """Write the start of a trial."""
        self._write({"trial": trial.number, "state": "running", "params": trial.values, "command": command})

    def ended(self, trial: Trial, command: list[str]) -> None:
        """Write the end of a trial."""
        self._write(
            {
                "trial": trial.number,
                "state": trial.state.value,
                "value": as_json(trial.value),
                "step": as_json(trial.step),
                "params": trial.values,
                "reports": [[as_json(step), as_json(value)] for step, value in trial.reports],
                "printed": as_json(trial.printed),
                "seconds": round(trial.seconds, 3),
                "hosts": trial.hosts,
                "attempts": trial.attempts,
                "command": command,
                "story": trial.failure_text,
            }
        )

    def flush(self) -> None:
        """Try to write the lines that have not been written yet."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
            self.problem = None
        except OSError as error:  # a full disk must not end a sweep
            self.problem = error.strerror

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        self._unwritten += json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        self.flush()


@dataclass(frozen=True)
class Earlier:
    """An earlier run, read from its record."""

    folder: Path
    header: Header
    trials: list[Trial]
    """All trials. Trials that were running are waiting again."""

    @property
    def finished(self) -> list[Trial]:
        """The trials that are not run again. Failed ones are, since they may succeed now."""
        return [trial for trial in self.trials if trial.state in (State.COMPLETE, State.PRUNED)]

    @property
    def unfinished(self) -> list[Values]:
        """The values of the trials that must run again."""
        return [trial.values for trial in self.trials if trial.state in (State.WAITING, State.FAILED)]


def read(path: str) -> Earlier:
    """Read the record of an earlier run, given its folder, or any file in it.

    Raises:
        UsageError: there is no record, or it cannot be read.
    """
    folder = Path(path)
    try:
        if not folder.is_dir():
            folder = folder.parent
        header = Header(**json.loads((folder / _HEADER).read_text()))
        if header.version != _VERSION:
            raise ValueError(f"version {header.version}")
        lines = (folder / _TRIALS).read_text().splitlines() if (folder / _TRIALS).exists() else []
    except (OSError, ValueError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"--resume {path!r} is no sweep that can be resumed ({reason}): give the directory that its --output "
            "named, with sweep.json and trials.jsonl"
        ) from None
    trials = {trial.number: trial for trial in _trials(lines)}  # the last line about each
    return Earlier(folder, header, list(trials.values()))


def is_there(folder: Path) -> bool:
    """Whether a folder has the record of a sweep."""
    try:
        return (folder / _HEADER).exists()
    except OSError:  # the name is too long, or the folder may not be read
        return False


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: if that fails, or the process is killed meanwhile, the old file stays.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def _not_writable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"--output {str(folder)!r} cannot be written: {error.strerror}; give a directory you may write, with room on "
        "its disk"
    )


def _trials(lines: list[str]) -> Iterator[Trial]:
    for line in lines:
        try:
            entry = json.loads(line)
            state = entry["state"]
            yield Trial(
                int(entry["trial"]),
                dict(entry["params"]),
                State.WAITING if state == "running" else State(state),
                attempts=entry.get("attempts", 0),
                reports=[(float(step), float(value)) for step, value in entry.get("reports", ())],
                printed=None if entry.get("printed") is None else float(entry["printed"]),
                seconds=entry.get("seconds", 0.0),
                failure_text=entry.get("story", ""),
            )
        except (ValueError, KeyError, TypeError):  # a line that a killed launcher has not finished
            continue


def as_json(value: float | None) -> float | str | None:
    """Return a value in a form that JSON has: infinities and NaN become text."""
    return value if value is None or math.isfinite(value) else str(value)
