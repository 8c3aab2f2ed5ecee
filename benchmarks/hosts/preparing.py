"""The cost of preparing hosts: python -m benchmarks.hosts.preparing [--hosts 100] [--files 1000].

Hosts are processes on this machine with caches of their own, spoken to over pipes as to a channel of SSH: what is
measured is distrun's part, from the start of the host's Python to its first words as an agent. The bare ones run
without site-packages, as a host that has no distrun would.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from distrun.runner.hosts.introduction import introduce
from distrun.runner.hosts.program import AGENT, ChildProgram
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.protocol.handshake import Greeting
from distrun.runner.shipping import delivery as openings
from distrun.runner.shipping.delivery import Delivery
from distrun.runner.shipping.snapshot import take
from distrun.runner.system.fan_out import call_for_each

_DEADLINE = 300.0
_ROUNDS = 9


class Host(ChildProgram):
    """An agent in a process with a cache of its own; see `distrun.runner.hosts.program.Program`."""

    def __init__(self, cache: Path, delivery: Delivery, is_bare: bool) -> None:
        """Start it. Args: its cache; what it may get; whether it finds no distrun of its own."""
        self.python = sys.executable
        first_folders = openings._first_folders
        try:
            if is_bare:  # this checkout is on the same machine, which a bare host does not have
                openings._first_folders = lambda: []
            opening = delivery.opening("benchmark")
        finally:
            openings._first_folders = first_folders
        command = [sys.executable, *(["-I", "-S"] if is_bare else []), "-c", opening.code, AGENT]
        super().__init__(command, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
        self.write(opening.text)

    def wait(self) -> int:
        """Wait for its end."""
        return self._process.wait(_DEADLINE)

    def explain_start(self, output: bytes) -> str:
        """Return the reason why it ended."""
        return f"it ended: {output!r}"

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def close(self) -> None:
        """End it and close its streams."""
        super().close()
        self._process.wait(_DEADLINE)


def prepare(cache: Path, delivery: Delivery, is_bare: bool = False) -> float:
    """Return the seconds until a host is ready."""
    hello = Frame(FrameKind.HELLO, payload=Greeting(0.0, "/").to_json()).encode()
    begin = time.perf_counter()
    host = Host(cache, delivery, is_bare)
    try:
        introduce(host, delivery, hello, time.monotonic() + _DEADLINE)
        return time.perf_counter() - begin
    finally:
        host.close()


def main() -> None:
    """Print the seconds of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--files", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        os.environ["XDG_CACHE_HOME"] = f"{work}/launcher"
        folder, cache = Path(work, "code"), Path(work, "host")
        for number in range(options.files):
            file = folder / f"part{number % 50}" / f"module{number}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"NUMBER = {number}\n" * 200)
        nothing = Delivery()
        uncompared = Delivery(brings_itself=False)
        _rows(
            ("agent, the host has the same distrun", lambda: prepare(cache, nothing)),
            ("agent, nothing is compared or sent (--no-bootstrap)", lambda: prepare(cache, uncompared)),
        )
        first = prepare(cache, nothing, is_bare=True)
        print(f"{'bare host, distrun is sent':60} {first:.3f} s")
        _rows(("bare host, distrun is in its cache", lambda: prepare(cache, nothing, is_bare=True)))
        begin = time.perf_counter()
        shipped = Delivery(snapshots=(take(str(folder), "", 1 << 30),))
        print(f"{f'list of {options.files} files, read':60} {time.perf_counter() - begin:.3f} s")
        print(f"{f'{options.files} files are sent':60} {prepare(cache, shipped):.3f} s")
        time.sleep(2.1)  # files that have just been written are read once more
        take(str(folder), "", 1 << 30)
        _rows((f"list of {options.files} files, unchanged", lambda: _seconds(lambda: take(str(folder), "", 1 << 30))))
        _rows((f"{options.files} files, unchanged", lambda: prepare(cache, shipped)))
        caches = [Path(work, f"host{number}") for number in range(options.hosts)]
        for name in ("sent", "unchanged"):
            begin = time.perf_counter()
            seconds = call_for_each(lambda place: prepare(place, shipped), caches, "benchmark")
            whole = time.perf_counter() - begin
            text = f"{options.hosts} hosts at once, {options.files} files, {name}: all"
            print(f"{text:60} {whole:.2f} s, a host at most {max(seconds):.2f} s")
        begin = time.perf_counter()
        call_for_each(lambda place: prepare(place, nothing), caches, "benchmark")
        text = f"{options.hosts} hosts at once, nothing shipped: all"
        print(f"{text:60} {time.perf_counter() - begin:.2f} s")


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _rows(*rows: tuple[str, Callable[[], float]]) -> None:
    """Measure in turn, so that what else the machine does concerns all alike."""
    found: dict[str, list[float]] = {name: [] for name, _ in rows}
    for _ in range(_ROUNDS):
        for name, measure in rows:
            found[name].append(measure())
    for name, seconds in found.items():
        print(f"{name:60} {statistics.median(seconds):.3f} s (least {min(seconds):.3f})", flush=True)


if __name__ == "__main__":
    main()
