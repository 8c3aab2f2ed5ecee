"""Disagreement is an error on every rank, with names, values and places, and the job goes on."""

from __future__ import annotations

import pytest


@pytest.mark.gate
def test_disagreements_and_impossible_requests_raise_clearly_and_the_job_goes_on(job):
    job.run("errors")
