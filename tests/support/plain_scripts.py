"""Plain training scripts under `distrun --auto` beside the same script in one process.

    python tests/support/plain_scripts.py [--np N] [NAME ...]

runs the scripts whose names contain one of the words, all if there is none, and prints the table of docs/auto-tried.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plain_script_cases import CASES, Case

SCRIPTS = Path(__file__).parents[1] / "frameworks" / "auto" / "scripts"
DEADLINE = 900.0  # seconds; far more than any script takes, so that a busy machine fails no test
_QUIET = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


@dataclass(frozen=True)
class Run:
    """The end of a script, and what it has left."""

    status: int
    output: str
    errors: str
    files: Mapping[str, int]
    """Sizes in bytes by name, of what lies in the folder where the script ran."""

    @property
    def lines(self) -> list[str]:
        """The lines of the output without the launcher's prefix, and without Keras's bars, which follow the clock."""
        plain = [re.sub(r"^\[\d+\] ?", "", line).rstrip() for line in re.split(r"[\r\n]", self.output)]
        return [line for line in plain if line and "\u2501" not in line]

    def figure(self, pattern: str) -> float:
        """Return the number that a pattern's group finds last."""
        found = re.findall(pattern, self.output, re.IGNORECASE)
        assert found, f"nothing printed matches {pattern!r}:\n{self.output[-2000:]}\n{self.errors[-2000:]}"
        return float(found[-1])


@dataclass(frozen=True)
class Comparison:
    """A script in one process and on several ranks."""

    case: Case
    single: Run | None
    """None where the script was refused, as expected: there is nothing to compare."""
    auto: Run

    @property
    def figures(self) -> list[tuple[float, float]]:
        """The figures of the single process, and those of all ranks."""
        return [(self.single.figure(pattern), self.auto.figure(pattern)) for pattern in self.case.figures]

    @property
    def difference(self) -> float:
        """The largest relative difference of a figure."""
        return max(abs(ours - plain) / abs(plain) for plain, ours in self.figures)

    @property
    def reason(self) -> str:
        """The sentence of the refusal, on one line; empty if there is none."""
        text = re.sub(r"^\[\d+\] ", "", self.auto.errors, flags=re.MULTILINE)  # the launcher's prefix
        found = re.search(r"^distrun --auto: refused: (.*(?:\n  .*)*)", text, re.MULTILINE)
        return " ".join(found[1].split()) if found else ""

    def problems(self) -> list[str]:
        """Return what is not as it should be, a sentence each."""
        if self.case.refused is not None:
            return self._problems_of_refusal()
        if self.single.status or self.auto.status:
            errors = (self.auto if self.auto.status else self.single).errors
            return [f"it ended with status {self.auto.status}, alone with {self.single.status}: {errors[-3000:]}"]
        found = []
        if not self.difference <= self.case.tolerance:  # and not a NaN
            found.append(f"its figures differ by {self.difference:.2%}: {self.figures}")
        if not re.search(r"trains on \d+ ranks", self.auto.errors):
            found.append("nothing says that it trained on several ranks")
        if not re.search(self.case.warned, self.auto.errors):
            found.append(f"no warning says {self.case.warned!r}")
        if len(self.single.lines) != len(self.auto.lines):
            found.append(f"it printed {len(self.auto.lines)} lines, alone {len(self.single.lines)}")
        if self.single.files.keys() != self.auto.files.keys():
            found.append(f"it wrote {sorted(self.auto.files)}, alone {sorted(self.single.files)}")
        for name, size in self.single.files.items():
            if not 0.8 * size <= self.auto.files.get(name, size) <= 1.25 * size:
                found.append(f"{name} has {self.auto.files[name]} bytes, alone {size}")
        return found

    def _problems_of_refusal(self) -> list[str]:
        assert self.case.refused is not None
        if self.auto.status != 2:
            return [f"it is not refused, but ended with status {self.auto.status}: {self.auto.errors[-2000:]}"]
        if not re.search(self.case.refused, self.reason):
            return [f"the reason {self.reason!r} does not say {self.case.refused!r}: {self.auto.errors[-2000:]}"]
        if len(re.findall(r"^\[\d+\] distrun --auto: refused: ", self.auto.errors, re.MULTILINE)) != 1:
            return [f"it is refused more than once: {self.auto.errors[-2000:]}"]
        return []


def compare(case: Case, size: int = 2) -> Comparison:
    """Run a script alone, unless it is to be refused, and on `size` ranks; each in a folder of its own."""
    single = _run(case, []) if case.refused is None else None
    return Comparison(case, single, _run(case, [sys.executable, "-m", "distrun.runner", "--auto", "-np", str(size)]))


def _run(case: Case, launcher: Sequence[str]) -> Run:
    command = [*launcher, sys.executable, str(SCRIPTS / f"{case.script}.py"), *case.arguments]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(case.runs):
            done = subprocess.run(
                command, cwd=folder, env={**os.environ, **_QUIET}, capture_output=True, text=True, timeout=DEADLINE
            )
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        sizes = {str(path.relative_to(folder)): path.stat().st_size for path in paths}
    return Run(done.returncode, done.stdout, done.stderr, sizes)


def _row(comparison: Comparison) -> str:
    """Return a row of the table of docs/auto-tried.md."""
    case = comparison.case
    head = f"| {case.script} | {case.shows} |"
    if case.refused is not None or comparison.auto.status == 2:
        return f"{head} | | refused: {comparison.reason} |"
    plain, ours = comparison.figures[0]
    return f"{head} {plain:.4f} | {ours:.4f} | {comparison.difference:.2%} |"


def main() -> int:
    """Print the table; return 1 if something in it is not as it should be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", metavar="NAME")
    parser.add_argument("--np", type=int, default=2)
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.words or any(word in case.script for word in options.words)]
    failed = False
    print(f"| script | what it shows | one process | {options.np} ranks | difference |")
    print("| --- | --- | --- | --- | --- |")
    for case in chosen:
        comparison = compare(case, options.np)
        problems = comparison.problems()
        if comparison.auto.status in (0, 2):
            print(_row(comparison), flush=True)
        for problem in problems:
            print(f"{case.script}: {problem}", file=sys.stderr, flush=True)
        failed = failed or bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
