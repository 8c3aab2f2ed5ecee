"""Run groups of situations, and compare what is found with the faults that are known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DEADLINE = 7200.0  # seconds; far more than any group takes, so that a busy machine fails no test


def groups(folder: str) -> list[str]:
    """Return the groups of a folder: `torch/vision`."""
    paths = sorted((HERE / folder).glob("*.py.txt"))
    return [f"{folder}/{path.name.removesuffix('.py.txt')}" for path in paths if path.name != "preambles.py.txt"]


def records(folder: Path, pattern: str, *options: str) -> dict[str, dict]:
    """Run the situations whose names match a pattern; return what was found, by their names."""
    path = folder / "records"
    command = [sys.executable, str(HERE / "run.py"), "--only", pattern, "--json", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert path.exists(), done.stderr[-3000:]
    return {each["name"]: each for each in map(json.loads, path.read_text().splitlines())}


def check(group: str, folder: Path) -> None:
    """Run a group; no situation may be wrong, crash or hang but the ones in `known_faults.txt`, which all must."""
    found = {}
    for name, record in records(folder, f"^{group}/").items():
        faults = [each for each in record["judged"].values() if each not in ("ok", "refused")]
        if faults:
            found[name] = f"{faults[0]} {record['details']}"
    lines = (HERE / "known_faults.txt").read_text().splitlines()
    known = {line.split(": ")[0].removeprefix(f"{group}/") for line in lines if line.startswith(f"{group}/")}
    assert {name: found[name] for name in found.keys() - known} == {}, "these are new"
    assert sorted(known - found.keys()) == [], "these are right now: take them out of known_faults.txt"
