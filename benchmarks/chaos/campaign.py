"""Chaos: ranks, agents, links and hosts of an elastic job are killed at random, and nothing may be lost.

    python -m benchmarks.chaos --kills 200                one machine: ranks are killed, spares replace them
    python -m benchmarks.chaos --kills 200 --min-np 1     they are not waited for: the world shrinks, and grows again
    python -m benchmarks.chaos --kills 200 --hosts        two hosts in network namespaces (needs root): also agents are
                                                          killed, links cut, and hosts lost

The judge is checks.py. Where the world keeps its size, the losses are also compared with those of a job that
nobody disturbs. Exit status 0: all is well.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--min-np", type=int, help="let the world shrink to so many ranks")
    parser.add_argument("--hosts", action="store_true", help="on two hosts made of namespaces")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of each rank's DataLoader")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    if args.hosts and (reason := namespaces.missing()) is not None:
        parser.error(reason)
    print(f"seed {args.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="distrun-chaos-") as work, contextlib.ExitStack() as stack:
        hosts = None
        if args.hosts:
            hosts = stack.enter_context(namespaces.hosts(Path(work) / "hosts", Link("veth")))
            args.min_np = args.min_np or 1  # while a host is away, the other goes on
        return _chaos(args, hosts, Path(work))


def _chaos(args: argparse.Namespace, hosts: Hosts | None, work: Path) -> int:
    start = _starter(args, hosts, work)
    begun = time.monotonic()
    with start("chaos", []) as job:
        killed = _kill(job, args, hosts)
        job.end()
    facts = checks.facts_in(job.folder)
    epochs = max((fact["epochs"] for fact in facts if fact["what"] == "end"), default=0)
    report = checks.examine(facts, SAMPLES, epochs)
    faults = [*job.faults, *report.faults]
    print(f"{sum(killed.values())} kills in {time.monotonic() - begun:.0f} s: {dict(killed)}")
    print(f"{report.generations} generations of {sorted(report.sizes)} ranks, {report.steps} steps, {epochs} epochs")
    if len(report.sizes) == 1 and not faults:
        with start("calm", [f"--epochs={epochs}"]) as calm:
            calm.end()
        undisturbed = checks.examine(checks.facts_in(calm.folder), SAMPLES, epochs)
        faults += checks.differences(report, undisturbed) + undisturbed.faults
        print("the losses were compared with those of an undisturbed job")
    print("\n".join(faults) or "nothing was lost or doubled, and all weights were equal", flush=True)
    return 1 if faults else 0


def _starter(args: argparse.Namespace, hosts: Hosts | None, work: Path) -> Callable[..., Any]:
    environ = {**os.environ, **ranks.one_thread(), "TMPDIR": str(work)}
    options = ["-q", "-np", str(args.ranks), "--elastic", "--spares", str(args.spares), "--cooldown", "0.1,1"]
    options += ["--max-restarts", str(100 * args.kills), "--keepalive", str(KEEPALIVE)]
    options += ["--min-np", str(args.min_np)] if args.min_np else []
    if hosts is not None:
        half = args.ranks // 2
        options += ["-H", f"a:{args.ranks - half},b:{half}"]
        environ = {**environ, **hosts.environ, "HOME": str(launch.log_in(hosts)), "SSH_AUTH_SOCK": ""}

    @contextlib.contextmanager
    def start(name: str, more: Sequence[str]) -> Iterator[Job]:
        folder = work / name
        folder.mkdir()
        program = [sys.executable, str(PROGRAM), f"--samples={SAMPLES}", f"--batch={BATCH}", f"--log={folder}"]
        program += [f"--workers={args.workers}", f"--until={folder / 'end'}", "--epochs=1000000", f"--pause={PAUSE}"]
        command = [*launchers.distrun(), *options, *program, *more]
        job = Job(hosts.login.command(*command) if hosts else command, environ, folder, bool(more))
        try:
            yield job
        finally:
            if job.popen.poll() is None:
                processes.end_family(psutil.Process(job.popen.pid))
                job.popen.wait()

    return start


def _kill(job: Job, args: argparse.Namespace, hosts: Hosts | None) -> Counter[str]:
    chance = random.Random(args.seed)
    killed: Counter[str] = Counter()
    generation = 0
    try:
        for number in range(args.kills):
            # A host that was away is waited for: were the other to go next, nobody would be left.
            starts = job.wait_for_steps(generation, chance.randrange(1, MOST_STEPS), args.ranks)
            generation = starts[0]["generation"]
            kind = chance.choices(["rank", "agent", "link", "host"], [6, 1, 1, 1])[0] if hosts else "rank"
            host = chance.choice([hosts.a, hosts.b]) if hosts else None
            KINDS[kind](Place(host, job), hosts, starts, chance)
            killed[kind] += 1
            print(f"\r{number + 1} kills, generation {generation}", end="", flush=True)
        job.wait_for_steps(generation, 1, args.ranks)
    except HangError as error:
        job.faults.append(str(error))
    print()
    return killed
