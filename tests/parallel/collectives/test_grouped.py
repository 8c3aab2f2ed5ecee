"""Grouped operations between real ranks equal one operation per tensor."""

from __future__ import annotations

import pytest


@pytest.mark.gate
def test_every_form_on_groups_of_mixed_dtypes(job):
    job.run("grouped")
