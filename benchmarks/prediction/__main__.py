"""Predictions beside what was measured.

    python -m benchmarks.prediction own            runs of ours on several hosts made of namespaces (needs root)
    python -m benchmarks.prediction reported       the same of a torch script whose --report predicts (needs root)
    python -m benchmarks.prediction published      published tables, each point left out of the fit that predicts it

The tables are those of docs/predicting.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from benchmarks.hosts import namespaces
from benchmarks.prediction import own, published, reported


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("own", "reported", "published"))
    parser.add_argument("--turns", type=int, default=own.TURNS, help="of each run; the fastest counts")
    parser.add_argument("--ladder", help="only these links: '1 Gbit/s'")
    parser.add_argument("--json", type=Path, help="keep the fastest turns in this file, over all calls")
    options = parser.parse_args()
    if options.what == "published":
        print(published.table())
        return 0
    if (reason := namespaces.missing()) is not None:
        parser.error(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.what == "reported":
        print(reported.table(list(reported.rows(os.environ, options.turns))))
        return 0
    found = []
    runs, limit = own.load(options.json) if options.json and options.json.exists() else ({}, 0.0)
    limit = max(limit, own.fabric(os.environ))
    print(f"All hosts together send at most {limit / 1e9:.1f} Gbit/s here.\n", flush=True)
    for ladder in own.LADDERS:
        if options.ladder in (None, ladder.label):
            runs[ladder.label] = own.measure(ladder, os.environ, options.turns, runs.get(ladder.label, {}))
            found += own.rows(ladder, runs[ladder.label], limit)
            print(own.table(found), flush=True)
            if options.json is not None:
                own.save(found, runs, limit, options.json)
    return 0


sys.exit(main())
