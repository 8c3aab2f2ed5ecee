"""Processor seconds of each test and folder, started processes included, and the folders' budgets.

The kernel counts them: the session moves into a control group of its own, to which all processes started in it belong,
daemons and logins through sshd included. Where no control group can be made, only the session itself and the children
that it has waited for are counted.

The same test uses up to twice as many processor seconds on another machine, or where others disturb its caches. So a
folder over its budget is only named, and fails its session where it has used `FAILS_AT` times as much.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from session.tiers import FOLDERS, ROOT, Folder, folder_of

CONTROLLERS = (Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup"))  # version 1, and version 2
SHOWN = 5
FAILS_AT = 2.0  # budgets


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
    """Measures each test, and compares each folder with its budget at the end of a session of the gate.

    What a session's fixture starts is charged to the test that asked for it first.
    """

    def __init__(self, is_gate: bool) -> None:
        self._is_gate = is_gate and "COVERAGE_PROCESS_CONFIG" not in os.environ  # measuring coverage takes time, too
        self._meter = Meter()
        self._seconds: dict[str, dict[str, float]] = defaultdict(dict)  # folder, test
        self._complaints: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._meter.read()
        result = yield
        self._seconds[folder_of(item.path).name][item.nodeid] = self._meter.read() - before
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._meter.close()
        if not self._is_gate:
            return
        used = {folder: self._seconds.get(folder.name, {}) for folder in FOLDERS}
        shares = {folder: sum(seconds.values()) / folder.budget for folder, seconds in used.items()}
        self._complaints = [_over(folder, used[folder]) for folder, share in shares.items() if share > 1]
        if max(shares.values()) > FAILS_AT and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._seconds:
            terminalreporter.section("processor seconds")
        for name, used in sorted(self._seconds.items()):
            terminalreporter.write_line(f"{name}: {sum(used.values()):.1f} s, {len(used)} tests")
        if len(self._seconds) > 1:
            every = {test: seconds for used in self._seconds.values() for test, seconds in used.items()}
            terminalreporter.write_line("The dearest:\n" + _dearest(every, 2 * SHOWN))
        for complaint in self._complaints:
            terminalreporter.write_line(complaint, red=True, bold=True)


def _over(folder: Folder, used: Mapping[str, float]) -> str:
    path = Path(__file__).with_name("tiers.py").relative_to(ROOT)
    return (
        f"tests/{folder.name} has used {sum(used.values()):.0f} processor seconds of {folder.budget:.0f}, and fails at "
        f"{FAILS_AT * folder.budget:.0f}: mark tests as full, make them cheaper, or raise the budget in {path}. "
        f"The dearest:\n{_dearest(used, SHOWN)}"
    )


def _dearest(used: Mapping[str, float], count: int) -> str:
    tests = sorted(used, key=used.__getitem__, reverse=True)[:count]
    return "\n".join(f"  {used[test]:6.1f} s  {test}" for test in tests)
