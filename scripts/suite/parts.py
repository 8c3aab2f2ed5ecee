"""The full and lab tiers in parts, and the record of the parts that have passed on a commit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from session.tiers import COMPUTING, FOLDERS, ROOT, Folder
from streams import Command, Outcome, Runner

RECORD = ROOT / ".cache" / "tested-parts.json"
LIMIT = 4 * 3600.0  # seconds for all parts
FULL, LAB = ("gate", "full"), ("lab",)


@dataclass(frozen=True)
class Part:
    """The tests of some tiers in one of `FOLDERS`, or in single files."""

    name: str
    stream: str
    words: tuple[str, ...]
    """Arguments of pytest."""


def part(folder: Folder, tiers: Sequence[str]) -> Part:
    """Return the part of a folder without those below it that are in `FOLDERS` themselves."""
    below = [other.name for other in FOLDERS if other.name.startswith(f"{folder.name}/")]
    words = [f"tests/{folder.name}", *(f"--ignore=tests/{name}" for name in below)]
    words += [f"--tier={tier}" for tier in tiers]
    return Part(f"{folder.name} ({' and '.join(tiers)})", folder.stream, tuple(words))


def files(paths: Sequence[Path]) -> Part:
    """Return the part of single files, whatever their tier."""
    return Part(f"{len(paths)} changed files", "compute", tuple(str(path) for path in paths))


def of_rooms(rooms: Sequence[str]) -> list[Folder]:
    """Return the folders about these rooms: a path below distrun/ or below tests/; all for none.

    Raises:
        ValueError: a room that no folder is about.
    """
    for room in rooms:
        if not any((ROOT / top / _path(room)).exists() for top in ("distrun", "tests")):
            raise ValueError(f"{room} is neither a room of distrun/ nor a folder of tests/")
    return [folder for folder in FOLDERS if not rooms or any(_is_about(folder, room) for room in rooms)]


def is_near(room: str, other: str) -> bool:
    """Whether one of two dotted names of rooms is the other one or lies in it."""
    return not room or not other or f"{room}.".startswith(f"{other}.") or f"{other}.".startswith(f"{room}.")


def _path(room: str) -> str:
    return room.strip("/").removeprefix("distrun/").removeprefix("tests/")


def _is_about(folder: Folder, room: str) -> bool:
    path = _path(room)
    if f"{folder.name}/".startswith(f"{path}/"):
        return True
    return (ROOT / "distrun" / path).exists() and any(is_near(path.replace("/", "."), name) for name in folder.rooms)


def run(parts: Iterable[Part], python: Sequence[str]) -> bool:
    """Run the parts that have not passed on this commit yet, print the table of all, and return whether all passed.

    Args:
        python: the command that runs pytest, without its arguments.
    """
    commit = _commit()
    parts = list(parts)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    due = [part for part in parts if not _has_passed(record.get(part.name), commit)]

    def note(outcome: Outcome) -> None:
        record[outcome.name] = {
            "commit": commit,
            "is_good": outcome.is_good,
            "passed": outcome.passed,
            "failed": outcome.failed,
            "minutes": outcome.seconds / 60,
        }
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(record, indent=1))

    streams: dict[str, list[Command]] = {}
    for each in due:
        # Parts that compute run after each other, and those that wait beside them, after each other, too.
        kind = "compute" if each.stream in COMPUTING else "wait"
        streams.setdefault(kind, []).append(Command(each.name, (*python, *each.words)))
    if streams:
        Runner(LIMIT, note).run(streams)
    print(table(record, [each.name for each in parts]))
    return all(record[part.name]["is_good"] for part in parts)


def table(record: dict[str, dict[str, object]], names: Sequence[str]) -> str:
    """Return the rows of these parts as text, without those in which no test was selected."""
    names = [name for name in names if record[name]["passed"] or not record[name]["is_good"]]
    width = max(map(len, names), default=4)
    lines = [f"{'part':{width}}  passed  failed  minutes  commit"]
    for name in names:
        row = record[name]
        end = "" if row["is_good"] else "  FAILED"
        lines.append(
            f"{name:{width}}  {row['passed']:6}  {row['failed']:6}  {row['minutes']:7.1f}  {row['commit']}{end}"
        )
    return "\n".join(lines)


def _has_passed(row: dict[str, object] | None, commit: str) -> bool:
    return row is not None and row["is_good"] is True and row["commit"] == commit and not commit.endswith("+")


def _commit() -> str:
    """Return the commit that is checked out, with a + where files differ from it."""
    words = ("git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
