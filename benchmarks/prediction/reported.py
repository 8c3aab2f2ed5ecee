"""Predictions from the reports of a torch script, beside its runs on more hosts: all that a user does, and no more.

The launcher starts it by ssh on hosts made of namespaces, with --report. The report of the run on two hosts predicts;
the reports of the others tell how long their steps took.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hosts import launch, namespaces
from benchmarks.hosts.namespaces import INTERFACE, Host, Link
from benchmarks.prediction import network, own
from benchmarks.support import launchers, ranks
from distrun.runner.observation.prediction.profile import JobProfile
from distrun.runner.observation.prediction.reading import read

TRAINING = "benchmarks.prediction.torch_training"
WORKLOADS = {"12 MB": 1.5, "40 MB": 5.0}
"""Megabytes of each of 8 layers, by those of all."""
LINK = Link("1 Gbit/s", 1e9, least_burst=64 << 10)
HOSTS = (2, 4, 8)
STEPS = 30
DEADLINE = 240.0


@dataclass(frozen=True)
class Row:
    """A run on more hosts; times in seconds."""

    workload: str
    hosts: int
    measured: float
    predicted: float
    error: float
    """The standard error that the prediction names."""


def rows(environ: Mapping[str, str], turns: int) -> Iterator[Row]:
    """Yield what was measured beside what was predicted; of each run the fastest turn counts.

    Raises:
        processes.ProcessError: there can be no hosts here, or a run failed.
    """
    found: dict[tuple[str, int], JobProfile] = {}
    for _ in range(turns):
        for count in HOSTS:
            with _cluster(count, environ) as (login, work, own_environ):
                for name, megabytes in WORKLOADS.items():
                    profile = _run(login, work, count, megabytes, own_environ)
                    before = found.get((name, count))
                    if before is None or profile.seconds.step < before.seconds.step:
                        found[name, count] = profile
    for name in WORKLOADS:
        for count in HOSTS[1:]:
            by_two = own.predict(found[name, HOSTS[0]], None, count, 1e15)
            yield Row(name, count, found[name, count].seconds.step, by_two.seconds, by_two.error)


def _run(login: Host, work: Path, count: int, megabytes: float, environ: dict[str, str]) -> JobProfile:
    report = work / "report.html"
    command = [*launchers.distrun(), "-np", str(count), "-H", ",".join(f"h{index}" for index in range(count))]
    command += ["--report", str(report), "--network", INTERFACE, "--wdir", os.getcwd()]
    command += [sys.executable, "-m", TRAINING, str(STEPS), str(megabytes)]
    namespaces.run(login, command, {**environ, **ranks.one_thread()}, DEADLINE)
    return read(str(report))


@contextlib.contextmanager
def _cluster(count: int, outer: Mapping[str, str]) -> Iterator[tuple[Host, Path, dict[str, str]]]:
    """Make hosts h0, h1, ... that a machine beside them may log in to; yield it, a folder, and its environment."""
    with tempfile.TemporaryDirectory(prefix="distrun-bench-") as name:
        work = Path(name)
        with network.cluster_with_login(count, LINK, work / "hosts") as (login, hosts):
            path = "/usr/sbin:/sbin:" + outer.get("PATH", os.defpath)
            environ = {**outer, "PATH": path, "TMPDIR": str(work / "hosts" / "tmp"), "SSH_AUTH_SOCK": ""}
            addresses = {host: network.address(index) for index, host in enumerate(hosts)}
            home = launch.log_in(login, addresses, work, environ)
            yield login, work, {**environ, "HOME": str(home)}


def table(found: list[Row]) -> str:
    """Return the rows as Markdown."""
    lines = ["| link | gradients | hosts | measured | from the report of 2 hosts | error |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for row in found:
        lines.append(
            f"| {LINK.label} | {row.workload} | {row.hosts} | {row.measured * 1e3:.0f} ms "
            f"| {row.predicted * 1e3:.0f} +- {row.error * 1e3:.0f} ms | {row.predicted / row.measured - 1:+.1%} |"
        )
    return "\n".join(lines)
