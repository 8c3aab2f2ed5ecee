"""Failures in process groups; see programs/failures.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.gate
def test_errors_tell_who_what_and_where_and_groups_go_on(job):
    job("failures", 2)


@pytest.mark.gate
def test_a_rank_that_waits_for_a_dead_one_gets_an_error(run_ranks):
    ended = run_ranks(["--grace", "60", sys.executable, str(PROGRAMS / "death.py")], 2, os.environ)
    assert ended.returncode != 0
    assert "rank 1" in ended.stderr
    assert "told" in ended.stdout
