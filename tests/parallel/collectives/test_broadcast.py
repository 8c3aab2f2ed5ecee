"""Broadcast between real ranks gives everybody the root's values."""

from __future__ import annotations

import pytest


@pytest.mark.gate
def test_every_dtype_shape_layout_root_and_form(job):
    job.run("broadcast")
