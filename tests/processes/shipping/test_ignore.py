"""The rules of .gitignore, compared with git itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from distrun.runner.shipping.ignore import Rules
from distrun.runner.shipping.snapshot import take

pytestmark = pytest.mark.gate

NAMES = ["a", "b", "ab", "a.py", "b.log", "[x]", "a b", "data", "keep", "ü", "-"]
PIECES = st.sampled_from(
    [
        *NAMES,
        "*",
        "**",
        "?",
        "*.log",
        "a*",
        "[ab]",
        "[!a]*",
        "\\[x]",
        "[a-b]?",
        "[b-a]",
        "*.py",
        "[[:punct:]]",
        "[[:x:]]",
    ]
)


@st.composite
def rules(draw):
    line = "/".join(draw(st.lists(PIECES, min_size=1, max_size=3)))
    prefix, suffix = draw(st.sampled_from(["", "!", "/", "!/", "# "])), draw(st.sampled_from(["", "/", " ", "/**"]))
    return prefix + line + suffix


TEXTS = st.lists(rules(), max_size=4).map("\n".join)
PATHS = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join), min_size=1, max_size=8)


def test_rules_of_every_kind():
    text = "*.log\n!keep.log\n/build\ndata/\ndocs/**/*.html\n\\#x\nname\\ \n[!a-c].bin\n"
    found = Rules().within("", text)
    for path in ("x.log", "in/x.log", "build", "docs/a.html", "docs/a/b/c.html", "#x", "name ", "d.bin"):
        assert found.ignore(path, False), path
    for path in ("keep.log", "in/build", "data", "docs/a.htm", "name", "a.bin"):
        assert not found.ignore(path, False), path
    assert found.ignore("in/data", True)
    assert found.within("in/", "!x.log").ignore("in/x.log", False) is False


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "[b-a]",
            "x[!b-a]",
            "[!b-ac]",
            "[b-a-z]",
            "[\\b-a]",
            "[b-\\a]",
            "[a--]",
            "[!]-a]",
            "[a-c-e]",
            "[--a]",
            "[]-a]",
        ),
        *("[[:alpha:]-z]", "[z-[:alpha:]]", "[[:a-b:]]", "[[::]]", "[[:]", "[&&a]", "[~~a||]", "[a\\", "[a-\\", "[a-b"),
    ],
)
def test_sets_match_what_they_match_in_git(tmp_path: Path, pattern):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text(f"{pattern}\n")
    characters = [chr(code) for code in range(0x21, 0x7F) if chr(code) not in "/."]
    names = [f"folder/{name}" for character in characters for name in (character, f"x{character}")]
    command = ["git", "-C", tmp_path, "check-ignore", "-z", "--stdin"]
    listed = subprocess.run(command, input="\0".join(names), stdout=subprocess.PIPE, text=True, check=False).stdout
    found = Rules().within("", pattern)
    assert [name for name in names if found.ignore(name, False)] == listed.split("\0")[:-1]


def test_histories_and_bytecode_are_always_left_out():
    assert all(Rules().ignore(path, True) for path in (".git", "a/.git", "a/__pycache__", ".hg"))


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@given(TEXTS, TEXTS, PATHS)
def test_the_same_files_are_ignored_as_by_git(tmp_path_factory, outer, inner, paths):
    folder = tmp_path_factory.mktemp("tree")
    files = []
    for path in paths:
        file = folder / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        except OSError:  # one of its folders is a file already, or the other way round
            continue
        files.append(file)
    (folder / ".gitignore").write_text(outer)
    if (folder / "data").is_dir():
        (folder / "data" / ".gitignore").write_text(inner)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "none")}
    subprocess.run(["git", "init", "-q", str(folder)], env=environ, check=True)
    command = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, text=True).stdout
    expected = sorted(filter(None, listed.split("\0")))
    assert sorted(entry.path for entry in take(str(folder), "", 1 << 30).manifest.files) == expected
    shutil.rmtree(folder)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("place", ["~/rules", "rules", "", None])
def test_the_rules_of_the_user_are_where_git_is_configured_to_have_them(tmp_path: Path, own_cache: Path, place):
    for name in ("default", "home", "top", "kept"):
        (tmp_path / name).touch()
    (tmp_path / "rules").write_text("top\nrules\n")
    (own_cache / "rules").write_text("home\nrules\n")
    (own_cache / "config" / "git").mkdir(parents=True)
    (own_cache / "config" / "git" / "ignore").write_text("default\nrules\n")
    if place is not None:
        subprocess.run(["git", "config", "--global", "core.excludesFile", place], check=True)
    expected = {
        "~/rules": ["default", "kept", "top"],
        "rules": ["default", "home", "kept"],
        None: ["home", "kept", "top"],
    }
    found = listed(tmp_path)
    assert found == expected.get(place, ["default", "home", "kept", "rules", "top"])
    assert kept(tmp_path) == found


def test_without_git_the_rules_of_the_user_are_where_it_looks_first(tmp_path: Path, own_cache: Path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "left").touch()
    (own_cache / "config" / "git").mkdir(parents=True)
    (own_cache / "config" / "git" / "ignore").write_text("left\n")
    assert take(str(tmp_path), "", 1000).manifest.files == ()


def test_rules_around_a_folder_count(tmp_path: Path):
    (tmp_path / ".git" / "info").mkdir(parents=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("excluded\n")
    (tmp_path / ".gitignore").write_text("/project/local\n*.tmp\n")
    project = tmp_path / "project"
    project.mkdir()
    for name in ("local", "excluded", "a.tmp", "kept"):
        (project / name).touch()
    assert [entry.path for entry in take(str(project), "", 1000).manifest.files] == ["kept"]


def listed(folder: Path) -> list[str]:
    """Return the files that git lists in a new repository, as the user's git is configured."""
    subprocess.run(["git", "init", "-q", folder], check=True)
    command = ["git", "-C", folder, "ls-files", "--others", "--exclude-standard"]
    return subprocess.check_output(command, text=True).split()


def kept(folder: Path) -> list[str]:
    """Return the paths of the files that travel."""
    return [entry.path for entry in take(str(folder), "", 1000).manifest.files]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"\xef\xbb\xbf.env\r\n*.log\r\n", [".gitignore", "Icon"]),  # as editors on Windows write it
        (b"*.log\n.env\nIcon\r\r\n", [".gitignore", "Icon"]),  # the name of a file of macOS ends with a return
        (b"?env\n[[:punct:]]gitignore\n*.lo[[:x:]g]\n", ["Icon", "a.log"]),
    ],
)
def test_rules_are_read_as_git_reads_them(tmp_path: Path, text, expected):
    (tmp_path / ".gitignore").write_bytes(text)
    for name in (".env", "a.log", "Icon"):
        (tmp_path / name).touch()
    assert kept(tmp_path) == expected
    if shutil.which("git") is not None:
        assert listed(tmp_path) == expected


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_worktree_has_the_rules_of_its_repository(tmp_path: Path):
    top, worktree = tmp_path / "top", tmp_path / "worktree"
    subprocess.run(["git", "init", "-q", top], check=True)
    git = ["git", "-C", top, "-c", "user.name=a", "-c", "user.email=b"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", worktree], check=True, stdout=subprocess.DEVNULL)
    (top / ".git" / "info" / "exclude").write_text("secret\n")
    for name in ("secret", "kept"):
        (worktree / name).touch()
    assert kept(worktree) == ["kept"]


def test_a_repository_in_the_folder_has_its_own_rules(tmp_path: Path):
    (tmp_path / "clone" / ".git" / "info").mkdir(parents=True)
    (tmp_path / "clone" / ".git" / "info" / "exclude").write_text("secret\n")
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / ".git").write_text("gitdir: ../modules/module\n")
    (tmp_path / "modules" / "module" / "info").mkdir(parents=True)
    (tmp_path / "modules" / "module" / "info" / "exclude").write_text("other\n")
    for place in (tmp_path, tmp_path / "clone", tmp_path / "module"):
        for name in ("secret", "other"):
            (place / name).touch()
    expected = ["clone/other", "module/secret", "modules/module/info/exclude", "other", "secret"]
    assert kept(tmp_path) == expected


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)])
def test_rules_that_are_no_file_are_none(tmp_path: Path, make):
    make(tmp_path / ".gitignore")
    (tmp_path / "kept").touch()
    assert kept(tmp_path) == ["kept"]
