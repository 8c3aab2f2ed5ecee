"""Chaos: ranks, agents, links and hosts of an elastic job are killed at random, and nothing may be lost.

    python -m benchmarks.chaos --kills 200                one machine: ranks are killed, spares replace them
    python -m benchmarks.chaos --kills 200 --min-np 1     they are not waited for: the world shrinks, and grows again
    python -m benchmarks.chaos --kills 200 --hosts        two hosts in network namespaces (needs root): also agents are
                                                          killed, links cut, and hosts lost

Exit status 0: all is well. `scripts/bench --only chaos` has a table of all three.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.chaos.campaign import Campaign, run
from benchmarks.hosts import namespaces


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--spares", type=int, default=1)
    parser.add_argument("--min-np", type=int, help="let the world shrink to so many ranks")
    parser.add_argument("--hosts", action="store_true", help="on two hosts made of namespaces")
    parser.add_argument("--workers", type=int, default=0, help="worker processes of each rank's DataLoader")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    campaign = Campaign(**vars(parser.parse_args()))
    if campaign.hosts and (reason := namespaces.missing()) is not None:
        parser.error(reason)
    print(f"seed {campaign.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="distrun-chaos-") as work:
        outcome = run(campaign, os.environ, Path(work))
    report = outcome.report
    print(f"{outcome.killed.total()} kills in {outcome.seconds:.0f} s: {dict(outcome.killed)}")
    print(f"{report.generations} generations of {sorted(report.sizes)} ranks, {report.steps} steps")
    if outcome.is_compared:
        print("the losses were compared with those of an undisturbed job")
    print("\n".join(outcome.faults) or "nothing was lost or doubled, and all weights were equal", flush=True)
    return 1 if outcome.faults else 0


sys.exit(main())
