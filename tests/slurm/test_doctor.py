"""`distrun doctor` within an allocation: it reaches the nodes by srun and measures between them."""

from __future__ import annotations

import json

import pytest


@pytest.mark.gate
def test_the_nodes_of_an_allocation_are_examined_through_srun(distrun):
    job = distrun("doctor", "--json")
    assert job.wait() == 0, job.stdout.data + job.stderr.data
    report = json.loads(job.stdout.data)
    assert [host["host"] for host in report["hosts"]] == ["alpha", "beta"]
    for host in report["hosts"]:
        assert host["steps"][0]["step"] == "srun"
        assert all(step["status"] == "ok" for step in host["steps"]), host
    assert len(report["links"]) == 2


def test_a_python_that_is_not_there_is_told(distrun):
    job = distrun("doctor", "--python", "/no/such")
    assert job.wait() == 1
    assert b"failed     python      its Python" in job.stdout.data
