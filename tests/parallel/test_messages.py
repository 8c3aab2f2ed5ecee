"""Messages between two real ranks arrive whole, in order and matched, whatever else is under way."""

from __future__ import annotations

import pytest


@pytest.mark.gate
def test_sizes_tags_sources_threads_and_callbacks(job):
    assert job.run("messages").count("done") == job.size
