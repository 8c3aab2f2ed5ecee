"""`distrun help`: a screen of the options most used, all others by group, and words of messages."""

import re
from pathlib import Path

import click
import pytest

from distrun import cli
from distrun.runner.command_lines.launch_options import every_launch_option
from distrun.tools.help.catalogue import COMMANDS, command
from distrun.tools.help.groups import GROUPS
from distrun.tools.help.screen import screen
from distrun.tools.help.words import WORDS

DOCS = Path(__file__).resolve().parents[4] / "docs"
SPELLINGS = {name for option in every_launch_option() for name in (*option.opts, *option.secondary_opts)}


@pytest.fixture
def answer(capsys):
    """Return a function that returns the exit status of `distrun ...`, its output and its complaint."""

    def status_and_texts(*words):
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        return ended.value.code, *capsys.readouterr()

    return status_and_texts


@pytest.mark.parametrize("words", [("-h",), ("--help",), ("help",), ("-np", "2", "--help")])
def test_help_fits_a_screen(answer, words):
    status, shown, complaint = answer(*words)
    assert (status, complaint, shown) == (0, "", screen())
    assert shown.count("\n") <= 40
    assert max(map(len, shown.splitlines())) <= 80


def test_the_screen_names_options_and_commands_that_there_are():
    used = screen().partition("Most used options:")[2]
    named = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", used.partition("Flags of")[0]))
    assert named <= SPELLINGS | {"-h"}
    listed = re.search(r"Commands.*?\n(.*?)\n\n", screen(), re.DOTALL)[1]
    assert {
        word.rstrip(",") for line in listed.splitlines() for word in re.match(r"(  ?\S+,)*  ?\S+", line[1:])[0].split()
    } == {*COMMANDS}


def test_every_option_is_in_one_group():
    grouped = [name for group in GROUPS.values() for name in group.options.split()]
    assert [name for name in grouped if name not in SPELLINGS] == []
    for option in every_launch_option():
        assert len([name for name in grouped if name in option.opts]) == 1, option.opts


def test_all_shows_every_option(answer):
    status, shown, _ = answer("help", "all")
    assert status == 0
    assert [name for name in SPELLINGS if not re.search(rf"(?<![\w-]){name}(?![\w-])", shown)] == []


def test_a_group_shows_its_options_with_what_they_mean(answer):
    status, shown, _ = answer("help", "servers")
    assert status == 0
    assert re.findall(r"^  (--\S+)", shown, re.MULTILINE) == GROUPS["servers"].options.split()
    assert "docs/parameter-servers.md" in shown


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("--ship", "--ship DIR[:REMOTE]"),
        ("ship", "--ship DIR[:REMOTE]"),
        ("--no-tag-output", "--tag-output / --no-tag-output"),
        ("host key", "--ssh-accept-new accepts"),
        ("Stall", "With --stall-timeout S"),
        ("rank 1 on a exited with code 1", "0: every rank ended with 0."),
        ("submitted by rank 0, not by rank 1", "names the ranks that are missing"),
        ("prometheus", "--metrics"),
        ("no connection can be accepted: raise the limit of open files", "ulimit -n counts open files"),
        ("rank 3 did not come within 60 s", "some have not started"),
        ("BootstrapError", "The ranks of a job could not find or trust one another."),
        ("sweep", "Usage: distrun sweep"),
    ],
)
def test_a_word_is_explained(answer, asked, expected):
    status, shown, _ = answer("help", *asked.split())
    assert status == 0
    assert expected in " ".join(shown.split())


def test_an_unknown_word_costs_one_sentence(answer):
    status, shown, said = answer("help", "qqqq")
    assert (status, shown, said.count("\n")) == (2, "", 1)
    assert said.startswith("distrun: error: nothing is known about 'qqqq': give a command, an option,")
    _, _, said = answer("help", "elastc")
    assert said == "distrun: error: nothing is known about 'elastc': did you mean 'distrun help elastic'?\n"


def test_what_a_command_lacks_costs_one_sentence(answer):
    status, shown, said = answer("completion")
    assert (status, shown) == (2, "")
    assert said.endswith("Choose from: bash, zsh, fish; see distrun completion --help\n")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "page", sorted({word.page for word in WORDS} | {f"{group.page}.md" for group in GROUPS.values()})
)
def test_the_pages_that_are_named_have_these_headings(page):
    path, _, heading = page.partition("#")
    text = (DOCS / path).read_text()
    anchors = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in re.findall("^#.*", text, re.M)
    }
    assert not heading or heading in anchors


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded(name):
    assert isinstance(command(name), click.Command)
