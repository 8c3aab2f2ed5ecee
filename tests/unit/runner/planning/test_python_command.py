"""Commands that are Python programs, in two parts."""

import os

import pytest

from distrun.errors import UsageError
from distrun.runner.planning.python_command import split, with_interpreter, zero_line


@pytest.mark.parametrize(
    ("line", "interpreter", "program"),
    [
        ("python train.py --lr 1", "python", "train.py --lr 1"),
        ("/opt/venv/bin/python3.11 -u -OO train.py -u", "/opt/venv/bin/python3.11 -u -OO", "train.py -u"),
        ("python3 -X dev -Wignore -W error -m mod a", "python3 -X dev -Wignore -W error", "-m mod a"),
        ("python -c pass", "python", "-c pass"),
        ("pypy3 x.py", "pypy3", "x.py"),
    ],
)
def test_the_interpreter_keeps_its_options(line, interpreter, program, tmp_path):
    parts = split(line.split(), os.defpath, str(tmp_path))
    assert (" ".join(parts.interpreter), " ".join(parts.program)) == (interpreter, program)


@pytest.mark.parametrize(
    "line", ["sleep 3", "python", "python -", "python -m", "python -i x.py", "python -um mod", "nix"]
)
def test_other_commands_are_none(line, tmp_path):
    assert split(line.split(), os.defpath, str(tmp_path)) is None


def test_a_folder_is_none(tmp_path):
    (tmp_path / "app").mkdir()
    assert split(["python", "app"], os.defpath, str(tmp_path)) is None


def test_a_script_is_run_by_the_python_of_its_first_line(tmp_path):
    for name, first in (("tool", "#!/usr/bin/env python3 -u"), ("pip", "#!/x/bin/python"), ("sh", "#!/bin/sh")):
        (tmp_path / name).write_text(f"{first}\n")
        (tmp_path / name).chmod(0o755)
    tool = split(["tool", "a"], str(tmp_path), "/")
    assert (tool.interpreter, tool.program) == (("python3", "-u"), (str(tmp_path / "tool"), "a"))
    assert split(["./pip"], None, str(tmp_path)).interpreter == ("/x/bin/python",)
    assert split(["sh"], str(tmp_path), "/") is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -u train.py --lr 1", "python -u -m distrun.auto scale train.py --lr 1"),
        ("python3 -m pack.train a", "python3 -m distrun.auto scale -m pack.train a"),
    ],
)
def test_a_plain_script_is_run_by_the_zero_line_mode(line, expected, tmp_path):
    assert " ".join(zero_line(line.split(), "scale", os.defpath, str(tmp_path))) == expected


@pytest.mark.parametrize("line", ["sleep 3", "python -c pass", "python -"])
def test_the_zero_line_mode_takes_no_other_commands(line, tmp_path):
    with pytest.raises(UsageError, match=f"--auto cannot run '{line}'"):
        zero_line(line.split(), "global", os.defpath, str(tmp_path))


def test_a_python_is_put_in_front_of_a_script_that_cannot_be_executed(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "tool.py").touch(0o755)
    for command in (("train.py", "-x"), ("./train.py",)):
        python, *rest = with_interpreter(command, str(tmp_path))
        assert os.path.basename(python).startswith("python")
        assert rest == [*command]
    for command in (("./tool.py",), ("missing.py",), ("sh", "train.py"), ()):
        assert with_interpreter(command, str(tmp_path)) == command
