"""Figures of `distrun sweep`: python -m benchmarks.elastic.sweep.

The time to the first trial, trials of `true` per second, and the share of slots that stand idle, from `trials.jsonl`
and from what trials themselves write.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLOTS = 2
STAMP = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(repr(time.time()))"
WORK = (
    "import sys, time, pathlib\n"
    "began = time.time()\n"
    "time.sleep(1.0)\n"
    "open(sys.argv[1], 'a').write(f'{began!r} {time.time()!r}\\n')\n"
)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        times = [first_trial(home, number) for number in range(3 if quick else 7)]
        print(f"from the command to the first trial running: median {statistics.median(times):.2f} s")
        count = 100 if quick else 1000
        seconds = run(home, "many", f"--seeds={count}", "-H", f"localhost:{SLOTS}", "true")
        print(f"{count} trials of `true` on {SLOTS} slots: {seconds:.1f} s, {count / seconds:.0f} per second")
        print(f"idle slots, trials of 1 s on {SLOTS} slots: {idle(home, 10 if quick else 40):.1%}")


def run(home: Path, name: str, *arguments: str) -> float:
    """Run a sweep to its end; return the seconds that it took."""
    command = [sys.executable, "-m", "distrun.runner", "sweep", "-q", "--output", str(home / name), *arguments]
    began = time.monotonic()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return time.monotonic() - began


def first_trial(home: Path, number: int) -> float:
    """Return the seconds from the start of the command to the first line of the first trial's script."""
    stamp = home / f"stamp{number}"
    began = time.time()
    run(home, f"first{number}", "--seeds=1", sys.executable, "-c", STAMP, str(stamp))
    return float(stamp.read_text()) - began


def idle(home: Path, count: int) -> float:
    """Return the share of slots in which no script ran, from the first trial's beginning to the last one's end."""
    script, log = home / "work.py", home / "log"
    script.write_text(WORK)
    run(home, "idle", f"--seeds={count}", "-H", f"localhost:{SLOTS}", str(script), str(log))
    spans = [tuple(map(float, line.split())) for line in log.read_text().splitlines()]
    busy = sum(end - begin for begin, end in spans)
    whole = SLOTS * (max(end for _, end in spans) - min(begin for begin, _ in spans))
    return 1 - busy / whole


if __name__ == "__main__":
    main()
