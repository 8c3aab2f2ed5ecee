"""Objects arrive whole."""

from __future__ import annotations

import pytest


@pytest.mark.gate
def test_objects_of_every_size_from_every_rank(job):
    job.run("objects")
