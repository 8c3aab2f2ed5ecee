"""The settings file: which is read, what it may have, and what wins over what."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from distrun import cli
from distrun.errors import UsageError
from distrun.runner.command_lines import settings_file
from distrun.runner.launch import launch

DOCS = Path(__file__).resolve().parents[4] / "docs"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the working directory, in a repository."""
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    folder = tmp_path / "repository" / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


@pytest.fixture
def launched(folder, monkeypatch, capsys):
    """Return a function that returns the options that a command line launches with, and what it has printed."""

    def options_of(*words, text=None):
        if text is not None:
            (folder / "distrun.toml").write_text(text)
        given = []
        monkeypatch.setattr(launch, "run", lambda options: given.append(options) or 0)
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "true"])
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        return given[0], printed.out, printed.err

    return options_of


@pytest.fixture
def refused(folder, capsys):
    """Return a function that returns the sentence with which a command line is refused."""

    def sentence_of(*words, text):
        (folder / "distrun.toml").write_text(text)
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "true"])
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
        return printed.err.removeprefix("distrun: error: ")

    return sentence_of


EVERYTHING = """
np = 2
H = ["a:1", "b:1"]
live = true
tag-output = false
stall_warning = 2.5
stdin = 0
x = ["A=1"]
auto = true
[profiles.big]
np = 3
hosts = "c:4"
live = false
x = ["A=2", "TOKENIZERS_PARALLELISM=0"]
auto = "scale"
cooldown = [10, 20]
"""


def test_options_come_from_the_file(launched):
    options, out, said = launched(text=EVERYTHING)
    expected = {"np": 2, "hosts": "a:1,b:1", "live": True, "tag_output": False, "stall_warning": 2.5, "stdin": "0"}
    assert expected.items() <= options.items()
    assert (options["exports"], options["auto"], options["cooldown"]) == (("A=1",), "global", None)
    assert said == (
        'distrun: settings of distrun.toml: np = 2, H = "a:1,b:1", live = true, tag-output = false, '
        'stall_warning = 2.5, stdin = "0", x = ["A"], auto = "global"\n'
    )
    assert out == ""


def test_a_profile_wins_over_the_file_and_the_command_line_over_both(launched):
    options, _, said = launched("--profile", "big", "-np", "4", "-x", "A=3", text=EVERYTHING)
    assert (options["np"], options["hosts"], options["live"], options["auto"]) == (4, "c:4", False, "scale")
    assert options["exports"] == ("A=1", "A=2", "TOKENIZERS_PARALLELISM=0", "A=3")
    assert options["cooldown"] == "10,20"
    assert said.startswith("distrun: settings of distrun.toml, profile big: hosts = ")
    assert "np" not in said


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        (("--hostfile", "f"), 'hosts = "a"', {"hostfile": "f", "hosts": None}),
        (("-H", "a"), 'hostfile = "f"', {"hosts": "a", "hostfile": None}),
        (("--auto",), "horovod = true", {"auto": "global", "horovod": False}),
        (("--profile", "p"), 'hosts = "a"\n[profiles.p]\nhostfile = "f"', {"hostfile": "f", "hosts": None}),
    ],
)
def test_of_two_alternatives_the_one_closer_to_the_command_line_counts(launched, words, text, expected):
    options, *_ = launched(*words, text=text)
    assert expected.items() <= options.items()


def test_the_environment_wins_over_the_file(launched, monkeypatch):
    monkeypatch.setenv("DISTRUN_STALL_WARNING", "7")
    monkeypatch.setenv("DISTRUN_KEEPALIVE", "")
    options, _, said = launched(text="stall-warning = 3\nkeepalive = 4")
    assert (options["stall_warning"], options["keepalive"]) == (None, 4.0)
    assert said == "distrun: settings of distrun.toml: keepalive = 4\n"


def test_every_variable_that_means_the_same_as_an_option_is_known():
    page = (DOCS / "settings.md").read_text().partition("## Pods")[0]
    rows = re.findall(r"^\| `(DISTRUN_\w+)` \|.*also `--([\w-]+)`", page, re.MULTILINE)
    names = {"autotune-allow-wire-dtype": "autotune_wire_dtypes"}
    documented = {names.get(option, option.replace("-", "_")): variable for variable, option in rows}
    assert documented == settings_file.VARIABLES


def test_a_dry_run_tells_what_came_from_where(launched):
    options, out, said = launched("--profile", "big", "--dry-run", "--live", text=EVERYTHING)
    assert options["live"]
    assert out.splitlines()[:4] == [
        "settings of distrun.toml:",
        "  np = 3 (profile big)",
        '  hosts = "c:4" (profile big)',
        "  tag-output = false (for all launches)",
    ]
    assert '  x = ["A", "A", "TOKENIZERS_PARALLELISM"] (profile big)' in out
    assert "live" not in out
    assert said == ""


@pytest.mark.parametrize(
    ("words", "is_told"), [(("-q",), False), ((), True), (("--profile", "none"), False), (("-np", "1"), False)]
)
def test_the_file_is_told_of_where_it_has_changed_anything(launched, words, is_told):
    *_, said = launched(*words, text="np = 3")
    assert said == ("distrun: settings of distrun.toml: np = 3\n" if is_told else "")


def test_a_file_cannot_silence_that_it_was_read(launched):
    options, _, said = launched(text="quiet = true")
    assert options["quiet"]
    assert said == "distrun: settings of distrun.toml: quiet = true\n"


def test_the_nearest_file_counts_up_to_the_root_of_the_repository(launched, folder):
    (folder.parents[1] / "distrun.toml").write_text("np = 5")
    assert launched()[0]["np"] is None
    (folder.parent / "pyproject.toml").write_text('[tool.distrun]\nnp = 6\nhostfile = "hosts"\nreport = "~/r.html"')
    (folder / "pyproject.toml").write_text('[project]\nname = "uses-distrun"')
    options, _, said = launched()
    assert (options["np"], options["hostfile"]) == (6, f"{folder.parent}/hosts")
    assert options["report"] == f"{os.environ['HOME']}/r.html"
    assert said.startswith("distrun: settings of ../pyproject.toml: np = 6, ")
    assert launched(text='hostfile = "hosts"')[0]["hostfile"] == "hosts"


def test_the_search_ends_at_home(launched, folder, monkeypatch):
    (folder.parent / ".git").rmdir()
    (folder.parent / "distrun.toml").write_text("np = 5")
    assert launched()[0]["np"] == 5
    monkeypatch.setenv("HOME", str(folder))
    assert launched()[0]["np"] is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("np = = 1", "distrun.toml is no TOML: Invalid value (at line 1, column 6)"),
        ("livee = true", "distrun.toml, livee: there is no such option: did you mean live?"),
        ('env = ["A=1"]', "distrun.toml, env: there is no such option: did you mean x?"),
        ("zzz = 1", "distrun.toml, zzz: there is no such option: distrun help all lists them"),
        ('np = "2"', 'distrun.toml, np: "2" is not a number'),
        ("np = true", "distrun.toml, np: true is not a number"),
        ("np = 2.5", "distrun.toml, np: '2.5' is not a valid integer"),
        ("grace = -1", "distrun.toml, grace: '-1' is not a number of seconds >= 0"),
        ("hosts = true", "distrun.toml, hosts: true is not a text, in quotes"),
        ('live = "yes"', 'distrun.toml, live: "yes" is neither true nor false'),
        ('launcher = "docker"', "distrun.toml, launcher: 'docker' is not one of 'ssh', 'srun', 'mpirun'"),
        ("no-tag-output = true", "distrun.toml, no-tag-output: write tag-output = false"),
        ("dry-run = true", "distrun.toml, dry-run: this option is for the command line"),
        ("np = 1\nnum-proc = 2", "distrun.toml, num-proc: np is the same option: keep one"),
        ("[profiles]\na = 1", "distrun.toml, profiles has something that is no profile"),
        ('hosts = "a"\nhostfile = "f"', "--hosts 'a' and --hostfile 'f' exclude each other"),
        ("[cluster]\nnp = 1", "distrun.toml, cluster is a table and no option: options stand at the top, and in [prof"),
        ("[profiles.none]", "distrun.toml, profiles.none: --profile none reads no file"),
        (
            'x = ["WANDB_API_KEY=a1"]',
            'x: WANDB_API_KEY looks like a secret, which does not belong into a file: write "WA',
        ),
    ],
)
def test_what_a_file_may_not_have_costs_one_sentence(refused, text, sentence):
    said = refused("-q", text=text)
    assert sentence in said
    assert "a1" not in said


@pytest.mark.parametrize(
    ("profile", "text", "sentence"),
    [
        ("clstr", "[profiles.cluster]", "distrun.toml has no profile 'clstr': did you mean cluster?"),
        ("x", "[profiles.cluster]\n[profiles.laptop]", "there are cluster, laptop"),
        (
            "p",
            "[profiles.p]\ngrase = 1",
            "distrun.toml, profiles.p.grase: there is no such option: did you mean grace?",
        ),
    ],
)
def test_a_wrong_profile_costs_one_sentence(refused, profile, text, sentence):
    assert sentence in refused("--profile", profile, text=text)


def test_a_profile_without_any_file_costs_one_sentence(folder, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--profile", "p", "true"])
    assert ended.value.code == 2
    assert "--profile p: no settings file is here or above: write [profiles.p]" in capsys.readouterr().err


def test_two_files_of_one_folder_are_not_mixed(folder, refused):
    (folder / "pyproject.toml").write_text("[tool.distrun]\nnp = 1")
    assert "distrun.toml and pyproject.toml both have settings" in refused(text="np = 2")


def test_the_file_of_a_stranger_is_refused(folder, refused, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    mine = os.stat(folder)
    monkeypatch.setattr(
        os, "stat", lambda path, **more: os.stat_result((*mine[:4], 4712 if path == "." else 4713, *mine[5:]))
    )
    assert "distrun.toml belongs to user id 4713, and could start anything" in refused(text="np = 2")


def test_without_a_parser_a_file_is_refused_and_others_are_none(folder, monkeypatch):
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    pyproject = folder / "pyproject.toml"
    pyproject.write_text('[project.scripts]\ndistrun = "distrun.cli:main"')
    assert settings_file.read([str(pyproject)], None, []) is None
    pyproject.write_text("[tool.distrun]\nnp = 1")
    with pytest.raises(UsageError, match="which this Python cannot read by itself: pip install tomli"):
        settings_file.read([str(pyproject)], None, [])


def test_a_launch_without_a_file_does_not_import_this(launched, folder, monkeypatch):
    (folder / "pyproject.toml").write_text('[project]\nname = "mine"')
    monkeypatch.delitem(sys.modules, settings_file.__name__)
    launched("-np", "2")
    assert settings_file.__name__ not in sys.modules
