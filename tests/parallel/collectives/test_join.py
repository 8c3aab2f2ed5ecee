"""Joining with data of unequal lengths, between real ranks."""

from __future__ import annotations

import pytest


@pytest.mark.gate
def test_ranks_that_have_joined_change_nothing_in_what_the_others_do(job):
    job.run("join")
