"""A command that the doctor shows for use by hand, given to real shells."""

from __future__ import annotations

import subprocess

import pytest

from distrun.runner.planning.ssh_config import Route
from distrun.tools.doctor.shell_commands import ShellCommands

pytestmark = pytest.mark.gate

ROUTE = Route("b", "10.0.0.7", 2222, "me", timeout=3)


def test_the_words_of_a_command_by_hand_survive_both_shells(tmp_path):
    there = tmp_path / "it's here"
    there.mkdir()
    command = ShellCommands(ROUTE, "python", str(there)).step("directory")
    fake = tmp_path / "ssh"
    fake.write_text('#!/bin/sh\nshift 3\nexec sh -c "$*"\n')
    fake.chmod(0o755)
    shown = subprocess.run(
        command, shell=True, check=True, text=True, capture_output=True, env={"PATH": f"{tmp_path}:/bin"}
    )
    assert "it's here" in shown.stdout
