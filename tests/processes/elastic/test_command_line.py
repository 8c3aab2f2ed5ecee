"""Options of elastic jobs. What they refuse is in tests/unit/runner/command_lines."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.gate

PYTHON = (sys.executable, "-c", "import os; print(sorted(n for n in os.environ if 'CONTROL' in n or 'SPARE' in n))")


@pytest.mark.full
def test_that_no_restarts_are_wanted_makes_no_elastic_job(output):
    assert output("--max-restarts", "0", "--no-tag-output", "-np", "1", *PYTHON) == b"[]\n"


def test_a_dry_run_asks_the_script_for_the_hosts(output):
    assert output("--dry-run", "-np", "2", "--hosts-from", "echo a:2", *PYTHON).endswith(b"hosts now: a:2\n")


def test_of_commands_that_are_no_python_there_are_no_spares(distrun):
    job = distrun("--spares", "2", "-np", "1", "sh", "-c", "test $DISTRUN_RESTART = 1")
    assert b"there are no spares of 'sh', which is no Python program" in job.ended(0)


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("no-such-program", b"--hosts-from 'no-such-program' failed with status 127: "),
        ("echo a:two", b"--hosts-from 'echo a:two' printed 'a:two': "),
    ],
)
def test_a_script_that_fails_from_the_start_ends_the_job_at_once(distrun, script, sentence):
    job = distrun("--hosts-from", script, "-np", "2", *PYTHON)
    assert job.wait() == 2
    assert sentence in job.stderr.data
    assert job.stderr.data.count(b"\n") == 1
