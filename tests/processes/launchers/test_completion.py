"""Completion of command lines, in a real bash."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gate


@pytest.fixture
def completed(tmp_path):
    """Return a function that installs the script and returns what bash offers for a line."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host alpha *.cluster\n  User me\nhost = beta\n")
    program = tmp_path / "distrun"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m distrun.runner \"$@\"\n")
    program.chmod(0o755)
    environ = os.environ | {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_DATA_HOME": ""}

    def run(*command):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.split("\n")[:-1]

    (said,) = run(str(program), "completion", "bash", "--install")
    script = tmp_path / ".local/share/bash-completion/completions/distrun"
    assert said.startswith(f"{script} is written")
    code = """source "$1"; COMP_LINE=$2 COMP_POINT=${#2}; _distrun; printf '%s\\n' "${COMPREPLY[@]}" """
    return lambda line: run("bash", "-c", code, "-", str(script), line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("distrun do", ["doctor"]),
        ("distrun -np 2 --stall", ["--stall-timeout", "--stall-warning"]),
        ("distrun --launcher s", ["srun", "ssh"]),
        ("distrun -H ", ["alpha", "beta", "localhost"]),
        ("distrun -np 2 -H alpha:4,be", ["4,beta"]),
        ("distrun doctor --js", ["--json"]),
        ("distrun help el", ["elastic"]),
        ("distrun -np 2 python --l", [""]),
    ],
)
def test_bash_completes_commands_options_values_and_hosts(completed, line, expected):
    assert completed(line) == expected
