"""The metrics of a real job, asked for while it runs."""

from __future__ import annotations

import re
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

TRAINING = Path(__file__).parent / "programs" / "training.py"
DEADLINE = 120.0  # seconds
PLACE = re.compile(rb"distrun: metrics are at (http://(\S+):(\d+)/metrics)\n")


def scrape(address: str) -> dict[str, float]:
    """Return the metrics at an address."""
    with urllib.request.urlopen(address, timeout=DEADLINE) as answer:
        lines = answer.read().decode().splitlines()
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_the_metrics_of_a_job_grow_while_it_runs_and_end_with_it(distrun):
    job = distrun("-np", "2", "--metrics", ":0", sys.executable, str(TRAINING), "--seconds", "1000")
    job.stderr.wait_for(b"/metrics\n")
    address, host, port = PLACE.search(job.stderr.data).groups()
    assert host == b"127.0.0.1"
    steps = 'distrun_steps_total{rank="1",host="localhost"}'
    deadline, seen = time.monotonic() + DEADLINE, 0.0
    while (found := scrape(address.decode())).get(steps, 0.0) <= seen or not seen:
        seen = seen or found.get(steps, 0.0)
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    assert found["distrun_ranks"] == 2
    assert found['distrun_rank_memory_bytes{rank="0",host="localhost"}'] > 1 << 20
    assert any(key.startswith("distrun_seconds_total") and "forward" in key for key in found)
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", int(port))) != 0
