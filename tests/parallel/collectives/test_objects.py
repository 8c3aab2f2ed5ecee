"""Objects arrive whole."""

from __future__ import annotations


def test_objects_of_every_size_from_every_rank(job):
    job.run("objects")
