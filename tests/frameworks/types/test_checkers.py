"""Public types as type checkers see them in a user's program. mypy reads it in scripts/check."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "user_program.py"
REPOSITORY = Path(__file__).parents[3]


def test_pyright_sees_the_types_that_the_program_asserts(tmp_path):
    pytest.importorskip("basedpyright", reason="it comes with the extra dev")
    settings = {
        "include": [str(PROGRAM)],
        "extraPaths": [str(REPOSITORY)],
        "typeCheckingMode": "standard",
        "enableTypeIgnoreComments": True,
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    checked = subprocess.run(
        [sys.executable, "-m", "basedpyright", "-p", tmp_path, "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "0 errors" in checked.stdout, checked.stdout + checked.stderr
    assert checked.returncode == 0
