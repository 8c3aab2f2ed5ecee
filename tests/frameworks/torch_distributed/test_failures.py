"""Failures in process groups; see programs/failures.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


def test_errors_tell_who_what_and_where_and_groups_go_on(job):
    job("failures", 2)


def test_whoever_waits_for_a_dead_rank_is_told(run_ranks):
    ended = run_ranks(["--grace", "60", sys.executable, str(PROGRAMS / "death.py")], 2, os.environ)
    assert ended.returncode != 0
    assert "rank 1" in ended.stderr
    assert "told" in ended.stdout
