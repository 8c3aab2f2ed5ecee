"""The values of --ship, --ship-limit and --bootstrap."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from distrun.errors import UsageError
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.shipping.arrived import Arrived
from distrun.runner.shipping.options import parse_ship, parse_size
from distrun.runner.shipping.requirements import RANK_NEEDS, requirements

MARKED = "numpy; python_version < '3.12' and os_name == 'posix'"
PYPROJECT = Path(__file__).resolve().parents[4] / "pyproject.toml"


def test_the_needs_of_a_rank_are_those_of_the_project():
    text = PYPROJECT.read_text()
    assert all(f'"{need}"' in text for need in RANK_NEEDS)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("torch", ["torch"]),
        ("torch,numpy>=1.24,<3", ["torch", "numpy>=1.24,<3"]),
        ("ray[data,tune] torch==2.1", ["ray[data,tune]", "torch==2.1"]),
        ("numpy >= 1.24, <3 torch", ["numpy>=1.24,<3", "torch"]),
        (f"{MARKED}, torch", [MARKED, "torch"]),
        ("own @ git+https://me@a.b/own torch", ["own @ git+https://me@a.b/own", "torch"]),
        ("own@https://a.b/own.whl ; os_name=='posix',torch", ["own@https://a.b/own.whl ; os_name=='posix'", "torch"]),
    ],
)
def test_lists_of_requirements(value, expected):
    assert requirements(value) == tuple(dict.fromkeys((*expected, *RANK_NEEDS)))


def test_a_folder_with_the_name_of_a_package_is_no_file(tmp_path, monkeypatch):
    (tmp_path / "datasets").mkdir()
    monkeypatch.chdir(tmp_path)
    assert requirements("datasets") == ("datasets", *RANK_NEEDS)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("-e .", "'-e' is an option of pip"),
        ("torch,file:///x", "no such file 'file:///x'"),
        ("./my pkg", "no such file './my'"),
        ("reqs/gpu.in", "no such file 'reqs/gpu.in'"),
        (".", "no such file '.'"),
        ("reqs.txt", "there is no such file"),
    ],
)
def test_lists_with_what_is_on_this_machine_only_are_refused(value, named):
    with pytest.raises(UsageError, match=re.escape(named)):
        requirements(value)


def test_a_file_of_requirements_with_another_in_it(tmp_path):
    (tmp_path / "base.txt").write_text("numpy==2.0  # pinned\n")
    (tmp_path / "all.txt").write_text("# comment\n-r base.txt\n--extra-index-url https://a.b/c\ntorch \\\n  >=2\n")
    expected = ("numpy==2.0", "--extra-index-url https://a.b/c", "torch   >=2", *RANK_NEEDS)
    assert requirements(str(tmp_path / "all.txt")) == expected


def test_files_with_hashes_are_left_complete(tmp_path):
    (tmp_path / "locked.txt").write_text("numpy==2.0 --hash=sha256:ab\n")
    assert requirements(str(tmp_path / "locked.txt")) == ("numpy==2.0 --hash=sha256:ab",)


@pytest.mark.parametrize(
    "line", ["-e .", "./local", "-c limits.txt", "file:///a", "-f wheels", "--find-links=file:///a", "-e ./https://a"]
)
def test_lines_about_this_machine_are_refused(tmp_path, line):
    (tmp_path / "all.txt").write_text(f"{line}\n")
    with pytest.raises(UsageError, match=re.escape(line)):
        requirements(str(tmp_path / "all.txt"))


@pytest.mark.parametrize("line", ["-f https://a.b/c.html", "--find-links=https://a.b/c", "--constraint http://a.b/c"])
def test_lines_about_places_that_hosts_reach_are_taken(tmp_path, line):
    (tmp_path / "all.txt").write_text(f"{line}\ntorch\n")
    assert requirements(str(tmp_path / "all.txt")) == (line, "torch", *RANK_NEEDS)


def test_a_mark_of_the_encoding_belongs_to_no_line(tmp_path):
    (tmp_path / "base.txt").write_text("\ufeff# packages\ntorch\n")
    (tmp_path / "all.txt").write_text("\ufeff-r base.txt\n")
    assert requirements(str(tmp_path / "all.txt")) == ("torch", *RANK_NEEDS)


@pytest.mark.parametrize(("first", "second"), [("{}/b.txt", "{}/a.txt"), ("./b.txt", "./a.txt"), ("./a.txt", "a.txt")])
def test_a_file_that_requires_itself_is_refused(tmp_path, monkeypatch, first, second):
    (tmp_path / "a.txt").write_text(f"-r {first.format(tmp_path)}\n")
    (tmp_path / "b.txt").write_text(f"-r {second.format(tmp_path)}\n")
    monkeypatch.chdir(tmp_path)
    for name in (str(tmp_path / "a.txt"), "a.txt", "./a.txt"):
        with pytest.raises(UsageError, match="requires itself"):
            requirements(name)


def test_folders_here_and_there(tmp_path):
    here = str(tmp_path)
    assert parse_ship(here) == (here, "")
    assert parse_ship(f"{here}:work/code") == (here, "work/code")
    (tmp_path / "a:b").mkdir()
    assert parse_ship(f"{here}/a:b") == (f"{here}/a:b", "")
    assert parse_ship(f"{here}:../work/./code") == (here, "../work/./code")
    not_alone = ("/", "~", "~/.", "~me/", "..", "a/..", "../..", "./", "~/..", "//", "/a/..")
    for wrong in (f"{here}/none", "none:there", *(f"{here}:{to}" for to in not_alone)):
        with pytest.raises(UsageError, match="--ship"):
            parse_ship(wrong)


def test_sizes():
    assert [parse_size(text) for text in ("10", "2k", "1.5M", "2GiB")] == [10, 2048, 3 << 19, 2 << 30]
    with pytest.raises(UsageError, match="--ship-limit 'much'"):
        parse_size("much")


def test_an_agents_plan_gets_the_paths_of_its_host():
    text = json.dumps({"path": ["/c/distrun", "/c/psutil"], "trees": [["/me/code", "/c/trees/1"]]})
    arrived = Arrived.of({"DISTRUN_SHIPPED": text})
    environ = {"PATH": "/nowhere", "PYTHONPATH": "/me/code/lib:/me/codex"}
    plan = AgentPlan("a", ["run", "/me/code/train.py", "/me/codes"], "/me/code/in", 0.0, environ, [])
    made = arrived.adapted(plan)
    assert (made.command, made.wdir) == (["run", "/c/trees/1/train.py", "/me/codes"], "/c/trees/1/in")
    assert made.environ["PYTHONPATH"] == "/c/distrun:/c/trees/1/lib:/me/codex:/c/psutil"
    assert made.environ["DISTRUN_SHIPPED"] == text
    assert Arrived.of({}) is None


def test_of_a_folder_in_another_the_inner_one_counts():
    trees = (("/me/code", "/c/trees/1"), ("/me/code/data", "/c/trees/2"))
    for given in (trees, trees[::-1]):
        arrived = Arrived("", (), given)
        paths = ("/me/code/data/x", "/me/code/data", "/me/code/database", "/me/codes")
        assert [*map(arrived.here, paths)] == ["/c/trees/2/x", "/c/trees/2", "/c/trees/1/database", "/me/codes"]


def test_the_command_of_a_trial_gets_the_paths_and_the_python_of_its_host():
    arrived = Arrived.of({"DISTRUN_SHIPPED": json.dumps({"path": [], "trees": [["/me/code", "/c/trees/1"]]})})
    plan = AgentPlan("a", [], "/", 0.0, {"PATH": "/nowhere"}, [], python="/me/venv/bin/python")
    given = ["/me/venv/bin/python", "/me/code/train.py", "--lr=1"]
    assert arrived.command(given, plan) == [sys.executable, "/c/trees/1/train.py", "--lr=1"]
    assert arrived.command(["python", "train.py"], plan) == [sys.executable, "train.py"]
    assert arrived.command(["/usr/bin/python3", "train.py"], plan) == ["/usr/bin/python3", "train.py"]
    named = replace(plan, python="")
    assert arrived.command(given, named) == ["/me/venv/bin/python", "/c/trees/1/train.py", "--lr=1"]
