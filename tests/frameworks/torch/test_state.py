"""Starting from the same state; see programs/state.py for the behaviours."""

from __future__ import annotations

import pytest


@pytest.mark.gate
def test_all_ranks_start_from_the_roots_state(job):
    job("state", (1, 2))
