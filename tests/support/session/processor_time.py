"""Processor seconds of each test and folder, started processes included, and the folders' budgets.

The kernel counts them: the session moves into a control group of its own, to which all processes started in it belong,
daemons and logins through sshd included. Where no control group can be made, only the session itself and the children
that it has waited for are counted.

The same test uses more processor seconds on a slow machine, or where others disturb its caches. So a small program is
measured once a minute between the tests, and where it takes longer than it did when the budgets were set, budgets grow
by as much.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean

import pytest
from session.tiers import FOLDERS, ROOT, folder_of

CONTROLLERS = (Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup"))  # version 1, and version 2
SHOWN = 5
REFERENCE = (sys.executable, "-Ic", "import numpy")  # starts a process, as most tests do
REFERENCE_SECONDS = 0.2  # what it took when the budgets were set
REFERENCE_INTERVAL = 60.0  # seconds


class Meter:
    """The processor seconds that this process and all that it starts have used."""

    def __init__(self) -> None:
        self._group: Path | None = None
        for controller in CONTROLLERS:
            group = controller / f"distrun-tests-{os.getpid()}"
            if not (controller / "cgroup.procs").exists():
                continue
            with suppress(OSError):
                group.mkdir()
                (group / "cgroup.procs").write_text(str(os.getpid()))
                self._group = group
                break

    def read(self) -> float:
        """Return the seconds so far."""
        if self._group is None:
            return sum(os.times()[:4])
        with suppress(FileNotFoundError):
            return int((self._group / "cpuacct.usage").read_text()) / 1e9
        words = (self._group / "cpu.stat").read_text().split()
        return int(words[words.index("usage_usec") + 1]) / 1e6

    def close(self) -> None:
        """Move back, and remove the control group, unless a process is left in it."""
        if self._group is not None:
            with suppress(OSError):
                (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
                self._group.rmdir()


class ProcessorTimePlugin:
    """Measures each test; a session of the gate fails if a folder has used more than its budget.

    What a session's fixture starts is charged to the test that asked for it first.
    """

    def __init__(self, is_gate: bool) -> None:
        self._is_gate = is_gate and "COVERAGE_PROCESS_CONFIG" not in os.environ  # measuring coverage takes time, too
        self._meter = Meter()
        self._seconds: dict[str, dict[str, float]] = defaultdict(dict)  # folder, test
        self._reference: list[float] = []
        self._next_reference = time.monotonic()
        self._complaints: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if self._is_gate and time.monotonic() >= self._next_reference:
            self._reference.append(self._seconds_of_reference())
            self._next_reference = time.monotonic() + REFERENCE_INTERVAL
        before = self._meter.read()
        result = yield
        self._seconds[folder_of(item.path).name][item.nodeid] = self._meter.read() - before
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._meter.close()
        if self._is_gate:
            for folder in FOLDERS:
                used = self._seconds.get(folder.name, {})
                budget = folder.budget * slowness(self._reference)
                if sum(used.values()) > budget:
                    self._complaints.append(_over(folder.name, budget, used))
        if self._complaints and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._seconds:
            terminalreporter.section("processor seconds")
        if self._reference:
            words = f"{mean(self._reference):.3f} s, budgets x {slowness(self._reference):.2f}"
            terminalreporter.write_line(f"the reference program: {words}")
        for name, used in sorted(self._seconds.items()):
            terminalreporter.write_line(f"{name}: {sum(used.values()):.1f} s, {len(used)} tests")
        if len(self._seconds) > 1:
            every = {test: seconds for used in self._seconds.values() for test, seconds in used.items()}
            terminalreporter.write_line("The dearest:\n" + _dearest(every, 2 * SHOWN))
        for complaint in self._complaints:
            terminalreporter.write_line(complaint, red=True, bold=True)

    def _seconds_of_reference(self) -> float:
        before = self._meter.read()
        subprocess.run(REFERENCE, check=True)
        return self._meter.read() - before


def slowness(reference: Sequence[float]) -> float:
    """Return by what factor budgets grow, given the processor seconds of each run of the reference program."""
    return max(1.0, mean(reference) / REFERENCE_SECONDS) if reference else 1.0


def _over(name: str, budget: float, used: Mapping[str, float]) -> str:
    return (
        f"tests/{name} has used {sum(used.values()):.0f} processor seconds of {budget:.0f}: mark tests as full, make "
        f"them cheaper, or raise the budget in {Path(__file__).with_name('tiers.py').relative_to(ROOT)}. The dearest:\n"
        + _dearest(used, SHOWN)
    )


def _dearest(used: Mapping[str, float], count: int) -> str:
    tests = sorted(used, key=used.__getitem__, reverse=True)[:count]
    return "\n".join(f"  {used[test]:6.1f} s  {test}" for test in tests)
