"""Tests that run many times, half of them with all cores kept busy, and how often each has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree


def repeat(times: int, python: Sequence[str], words: Sequence[str]) -> bool:
    """Run tests `times` times, print a line for each that ever failed, and return whether none did.

    Args:
        python: the command that runs pytest, without its arguments.
        words: arguments of pytest.
    """
    failures: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    run: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    with TemporaryDirectory() as folder:
        for number in range(times):
            is_busy = number % 2 == 1
            print(f"== run {number + 1} of {times}, {'busy' if is_busy else 'quiet'} cores", flush=True)
            report = Path(folder) / f"{number}.xml"
            with busy_cores() if is_busy else quiet_cores():
                statuses[subprocess.run([*python, "-q", f"--junitxml={report}", *words], check=False).returncode] += 1
            for name, has_failed in _results(report):
                run[name] += 1
                failures[is_busy][name] += has_failed
    unsteady = sorted(name for name in run if failures[False][name] + failures[True][name])
    for name in unsteady:
        quiet, busy = failures[False][name], failures[True][name]
        print(f"failed {quiet + busy} of {run[name]} times, {busy} of them with busy cores: {name}")
    print(f"{len(run)} tests, {times} times; exit statuses of pytest: {dict(statuses)}; {len(unsteady)} tests failed")
    return not unsteady and set(statuses) == {0}


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep each core busy with a process that computes for ever."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@contextmanager
def quiet_cores() -> Iterator[None]:
    """Do nothing."""
    yield


def _results(report: Path) -> Iterator[tuple[str, bool]]:
    """Yield the tests of a run that were not skipped, and whether they failed."""
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        if case.find("skipped") is None:
            name = f"{case.get('classname')}::{case.get('name')}"
            yield name, case.find("failure") is not None or case.find("error") is not None
