"""A rank that begins to be 20 ms late in each step is named: by the live view, the timeline and the report."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import pytest
from histories.chrome_trace import query
from session.tiers import one_in_gate
from shell import wait_until

PROMISED, PATIENT = 10.0, 60.0  # seconds; a busy machine may break the promise
TRAINING = Path(__file__).parent / "programs" / "training.py"
COMMAND = (sys.executable, str(TRAINING), "--seconds", "1000", "--late", "0.02", "--late-from", "50")
NAMED = r"rank 1 on localhost costs every step \d+ ms \(\d+ %\): it waits for its input"
MISSED = "select name from slice where name glob 'waiting for rank *' group by 1 order by sum(dur) desc limit 1"


@pytest.mark.gate
@pytest.mark.parametrize("within", one_in_gate(PATIENT, PROMISED))
def test_a_straggler_is_named_soon_in_live_view_timeline_and_report(distrun, tmp_path, within):
    timeline, page = tmp_path / "t.json.gz", tmp_path / "report.html"
    observers = ("--live", "--timeline", str(timeline), "--report", str(page))
    job = distrun("-np", "3", "--oversubscribe", *observers, *COMMAND)
    job.stdout.wait_for(b"slow from now on")
    began = time.monotonic()
    job.stderr.wait_for_match(rf"distrun: 3 ranks, [\d.]+ steps/s.*; compute \d+ %.*; {NAMED}")
    wait_until(lambda: is_in(timeline))
    assert time.monotonic() - began <= within
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    assert re.search(rf"Held up by one rank: {NAMED}", page.read_text())


def is_in(timeline):
    """Whether the others wait for the straggler most by the file, which is being written."""
    try:
        return query(timeline).execute(MISSED).fetchone() == ("waiting for rank 1",)
    except (OSError, EOFError, ValueError):  # its end is just being written
        return False


def test_jobs_whose_hosts_a_script_lists_can_be_observed(distrun, tmp_path):
    hosts = tmp_path / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:3\n")
    hosts.chmod(0o755)
    observers = ("--live", "--report", str(tmp_path / "report.html"))
    job = distrun("--hosts-from", str(hosts), "-np", "3", "--max-np", "3", *observers, *COMMAND)
    job.stderr.wait_for_match(NAMED)
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    assert re.search(rf"Held up by one rank: {NAMED}", (tmp_path / "report.html").read_text())
