"""Files on ranks that do not write, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate
SCRIPT = """
import os, pathlib
from distrun.auto import files
files.keep_private()
with open("old.txt", "a") as file:
    file.write(" and more")
assert open("old.txt").read() == "old and more"
with open("new.txt", "x") as file:
    file.write("new")
pathlib.Path("other.bin").write_bytes(b"123")
assert (open("new.txt").read(), pathlib.Path("other.bin").read_bytes()) == ("new", b"123")
try:
    open("new.txt", "x")
except FileExistsError:
    pass
else:
    raise AssertionError
for number in range(300):
    with open(f"{number}.txt", "w") as file:
        file.write(str(number))
assert open("299.txt").read() == "299" and len(os.listdir("/proc/self/fd")) < 250
os.makedirs("folder")
os.remove("old.txt")
"""


def test_what_a_script_writes_is_found_again_and_not_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["old.txt", "script.py"]
    assert (tmp_path / "old.txt").read_text() == "old"
