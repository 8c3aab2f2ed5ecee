"""Run tests: the gate, the parts of the other tiers, what a change concerns, or some tests many times.

usage: scripts/test                        the gate: the checks, and the tests of tier gate
       scripts/test --full [ROOM ...]      all tests of tiers gate and full, or those about these rooms, in parts
       scripts/test --lab [ROOM ...]       likewise those of tier lab
       scripts/test --changed [REV]        the tests of all tiers that the changes since REV (HEAD) concern
       scripts/test PYTEST ARGUMENTS       the checks, and these tests, of whatever tier
       scripts/repeat [N] PYTEST ARGUMENTS these tests N (20) times, half of them with all cores kept busy
       scripts/repeat [N] --changed [REV]  likewise the test modules that differ from REV (HEAD)

A ROOM is a folder of distrun/ or of tests/. Parts that have passed on the commit checked out are not run again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import changed
import parts
from repeated import repeat
from session.tiers import FOLDERS, ROOT
from streams import Command, Outcome, Runner

CHECKS = Command("checks", ("scripts/check",))
# -I keeps the checkout off sys.path: what is tested is what is installed.
PYTEST = (sys.executable, "-Im", "pytest")
LIMIT = 45 * 60.0  # seconds; twice what the gate takes
TIMES = 20


def main(words: Sequence[str]) -> int:
    """Return the exit status."""
    os.chdir(ROOT)
    # Containers run tests as root, which Open MPI refuses unless told twice.
    os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    os.environ.pop("PYTHONPATH", None)  # the processes that tests start must not import another checkout
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # pytest is to end what it has started, then, too
    try:
        return 0 if _run(*words) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except ValueError as error:
        print(f"scripts/test: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"scripts/test: {' '.join(error.cmd)}: {error.stderr}", file=sys.stderr)
        return 2


def _run(command: str, first: str = "", *rest: str) -> bool:
    """Do what the script `command` (test or repeat) does with its arguments; return whether all went well."""
    if command == "repeat":
        return _repeat((first, *rest) if first else ())
    if first in ("-h", "--help"):
        print(__doc__)
        return True
    if not first:
        return _gate()
    if first in ("--full", "--lab"):
        tiers = parts.FULL if first == "--full" else parts.LAB
        return parts.run((parts.part(folder, tiers) for folder in parts.of_rooms(rest)), PYTEST)
    if first == "--changed":
        return _changed(*rest)
    return _shown(CHECKS.words) and _shown((*PYTEST, first, *rest))


def _gate() -> bool:
    streams: dict[str, list[str]] = {}
    for folder in FOLDERS:
        top = f"tests/{folder.name.partition('/')[0]}"
        if top not in streams.setdefault(folder.stream, []):
            streams[folder.stream].append(top)
    commands = {
        name: [Command(name, (*PYTEST, "--tier=gate", "--durations=10", *paths))] for name, paths in streams.items()
    }
    commands["compute"].insert(0, CHECKS)
    outcomes = Runner(LIMIT).run(commands)
    for outcome in outcomes:
        if not outcome.is_good:  # its output may be thousands of lines above
            print(f"== the end of {outcome.name}:\n{outcome.closing}\n")
    for outcome in outcomes:
        print(_line(outcome))
    return all(outcome.is_good for outcome in outcomes)


def _line(outcome: Outcome) -> str:
    end = "passed" if outcome.is_good else f"FAILED (exit status {outcome.status})"
    counts = f"; {outcome.passed} tests passed, {outcome.failed} failed" if outcome.passed or outcome.failed else ""
    return f"{outcome.name}: {end} in {outcome.seconds / 60:.1f} min{counts}"


def _changed(revision: str = "HEAD") -> bool:
    found = changed.concerned(changed.paths(revision), changed.direct_importers())
    chosen = [parts.part(folder, tiers) for folder in found.folders for tiers in (parts.FULL, parts.LAB)]
    if found.modules:
        chosen.append(parts.files(found.modules))
    if not chosen:
        print(f"No test is concerned by what has changed since {revision}.")
        return True
    return parts.run(chosen, PYTEST)


def _repeat(words: Sequence[str]) -> bool:
    times = TIMES
    if words and words[0].isdigit():
        times, words = int(words[0]), words[1:]
    if not words:
        raise ValueError("scripts/repeat runs tests that it is given: scripts/repeat tests/unit -k stall")
    if words[0] == "--changed":
        found = changed.paths(words[1] if len(words) > 1 else "HEAD")
        words = [str(path) for path in found if path.name.startswith("test_") and path.exists()]
        if not words:
            print("No test module has changed.")
            return True
    return repeat(times, PYTEST, words)


def _shown(words: Sequence[str]) -> bool:
    """Run a command in the foreground; return whether it succeeds."""
    return subprocess.run(words, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
