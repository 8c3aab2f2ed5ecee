"""Campaigns: ranks, agents, links and hosts of an elastic job are killed at random, one after the other.

The judge is checks.py. Where the world keeps its size, the losses are also compared with those of a job that nobody
disturbs.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos import checks
from benchmarks.chaos.job import HangError, Job
from benchmarks.chaos.kills import KEEPALIVE, KINDS, Place
from benchmarks.hosts import launch, namespaces
from benchmarks.hosts.namespaces import Hosts, Link
from benchmarks.support import launchers, processes, ranks

PROGRAM = Path(__file__).with_name("program.py")
SAMPLES, BATCH = 192, 8
PAUSE = 0.01
MOST_STEPS = 12
"""Steps that a generation makes, at most, before the next kill."""


@dataclass(frozen=True)
class Campaign:
    """The kills, and the job that has to survive them."""

    kills: int = 200
    ranks: int = 4
    spares: int = 1
    min_np: int | None = None
    """Let the world shrink to so many ranks; None: it keeps its size."""
    hosts: bool = False
    """On two hosts made of namespaces, whose agents are killed, too, whose links are cut, and which are lost."""
    workers: int = 0
    """Worker processes of each rank's DataLoader."""
    seed: int = 0


@dataclass
class Outcome:
    """The end of a campaign, and all that happened until then."""

    killed: Counter[str]
    """The number of kills of each kind."""
    seconds: float
    report: checks.Report
    epochs: int
    pauses: list[float]
    """The seconds from each kill until all ranks of a later generation were in a step."""
    hangs: int
    is_compared: bool = False
    """Whether the losses were compared with those of an undisturbed job."""
    faults: list[str] = field(default_factory=list)
    """Sentences, of a hang too; empty: all is well."""


def run(campaign: Campaign, environ: Mapping[str, str], work: Path) -> Outcome:
    """Carry a campaign through, with temporary files in `work`.

    Raises:
        processes.ProcessError: there can be no hosts here.
    """
    if not campaign.hosts:
        return _run(campaign, None, environ, work)
    if (reason := namespaces.missing()) is not None:
        raise processes.ProcessError(reason)
    with namespaces.hosts(work / "hosts", Link("veth")) as hosts:
        return _run(campaign, hosts, environ, work)


def _run(campaign: Campaign, hosts: Hosts | None, environ: Mapping[str, str], work: Path) -> Outcome:
    start = _starter(campaign, hosts, environ, work)
    begun = time.monotonic()
    with start("chaos", []) as job:
        killed, hangs = _kill(job, campaign, hosts)
        job.end()
    facts = checks.facts_in(job.folder)
    epochs = max((fact["epochs"] for fact in facts if fact["what"] == "end"), default=0)
    report = checks.examine(facts, SAMPLES, epochs)
    outcome = Outcome(
        Counter(kind for kind, _, _ in killed),
        time.monotonic() - begun,
        report,
        epochs,
        checks.pauses(facts, [(at, generation) for _, at, generation in killed]),
        hangs,
        faults=[*job.faults, *report.faults],
    )
    if len(report.sizes) == 1 and not outcome.faults:
        with start("calm", [f"--epochs={epochs}"]) as calm:
            calm.end()
        undisturbed = checks.examine(checks.facts_in(calm.folder), SAMPLES, epochs)
        outcome.faults += checks.differences(report, undisturbed) + undisturbed.faults
        outcome.is_compared = True
    return outcome


def _starter(campaign: Campaign, hosts: Hosts | None, outer: Mapping[str, str], work: Path) -> Callable[..., Any]:
    environ = {**outer, **ranks.one_thread(), "TMPDIR": str(work)}
    # While a host is away, the other goes on.
    min_np = campaign.min_np or (1 if hosts else None)
    options = ["-q", "-np", str(campaign.ranks), "--elastic", "--spares", str(campaign.spares), "--cooldown", "0.1,1"]
    options += ["--max-restarts", str(100 * campaign.kills), "--keepalive", str(KEEPALIVE)]
    options += ["--min-np", str(min_np)] if min_np else []
    if hosts is not None:
        half = campaign.ranks // 2
        options += ["-H", f"a:{campaign.ranks - half},b:{half}"]
        environ = {**environ, **hosts.environ, "HOME": str(launch.log_in(hosts)), "SSH_AUTH_SOCK": ""}

    @contextlib.contextmanager
    def start(name: str, more: Sequence[str]) -> Iterator[Job]:
        folder = work / name
        folder.mkdir()
        program = [sys.executable, str(PROGRAM), f"--samples={SAMPLES}", f"--batch={BATCH}", f"--log={folder}"]
        program += [
            f"--workers={campaign.workers}",
            f"--until={folder / 'end'}",
            "--epochs=1000000",
            f"--pause={PAUSE}",
        ]
        command = [*launchers.distrun(), *options, *program, *more]
        job = Job(hosts.login.command(*command) if hosts else command, environ, folder, bool(more))
        try:
            yield job
        finally:
            if job.popen.poll() is None:
                processes.end_family(psutil.Process(job.popen.pid))
                job.popen.wait()

    return start


def _kill(job: Job, campaign: Campaign, hosts: Hosts | None) -> tuple[list[tuple[str, float, int]], int]:
    """Return each kill's kind, time and generation, and the number of hangs: at most one, which is the end."""
    chance = random.Random(campaign.seed)
    killed: list[tuple[str, float, int]] = []
    hangs = 0
    generation = 0
    try:
        for _ in range(campaign.kills):
            # A host that was away is waited for: were the other to go next, nobody would be left.
            starts = job.wait_for_steps(generation, chance.randrange(1, MOST_STEPS), campaign.ranks)
            generation = starts[0]["generation"]
            kind = chance.choices(["rank", "agent", "link", "host"], [6, 1, 1, 1])[0] if hosts else "rank"
            host = chance.choice([hosts.a, hosts.b]) if hosts else None
            killed.append((kind, time.monotonic(), generation))
            KINDS[kind](Place(host, job), hosts, starts, chance)
        job.wait_for_steps(generation, 1, campaign.ranks)
    except HangError as error:
        job.faults.append(str(error))
        hangs = 1
    return killed, hangs
