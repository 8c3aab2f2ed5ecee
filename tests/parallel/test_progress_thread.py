"""The engine's own thread dies of an error: the job fails with that reason, whatever the script does."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("job", ["distrun-2", "hosts-1+1", "hosts-1+2"], indirect=True)
@pytest.mark.parametrize("where", ["between turns", "executing"])
@pytest.mark.parametrize("then", ["waits", "ends"])
def test_the_job_fails_with_the_reason_and_an_exit_status(job, where, then):
    done = job.start("progress_thread", where, then)
    reason = f"the progress thread of rank {job.size - 1} failed: ZeroDivisionError: the test wants it so"
    assert done.returncode != 0
    assert "rank 0 heard: " in done.stdout
    assert all(reason in line for line in done.stdout.splitlines() if " heard: " in line), done.stdout
    assert reason in done.stderr
    if then == "waits":
        assert f"JobAbortedError: {reason}" in done.stderr


def test_a_script_that_handles_the_error_may_end_well(make_job):
    done = make_job("distrun-2").start("progress_thread", "between turns", "handles it")
    assert done.returncode == 0, done.stderr
    assert "rank 1 handled: the progress thread of rank 1 failed: ZeroDivisionError" in done.stdout
