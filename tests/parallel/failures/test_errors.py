"""Disagreement is an error on every rank, with names, values and places, and the job goes on."""

from __future__ import annotations


def test_disagreements_and_impossible_requests_raise_clearly_and_the_job_goes_on(job):
    job.run("errors")
