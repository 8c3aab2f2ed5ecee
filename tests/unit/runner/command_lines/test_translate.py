"""Words of another launcher's command line become those of ours, or are refused with one sentence."""

import pytest

from distrun.cli import distrun
from distrun.errors import UsageError
from distrun.runner.command_lines.own_options import own_options
from distrun.runner.command_lines.programs import NAMES, program
from distrun.runner.command_lines.table import Becomes, Holds, Ignored, Program, Refused, flag
from distrun.runner.command_lines.translate import translate

LAUNCH = Program(
    "launch",
    (
        flag("-n --number N", Becomes("-np {}")),
        flag("--pair NAME VALUE", Becomes("-x {}={}")),
        flag("--host LIST", Becomes("--hosts {}", joined=True)),
        flag("--quick", Ignored("it is quick")),
        flag("--queue NAME", Ignored("there is no queue")),
        flag("--anyway", Holds("it is so")),
        flag("--elastic N", Refused("it is not elastic")),
    ),
)
EITHER = Program("either", LAUNCH.flags, any_dashes=True)
SHORT = Program("short", LAUNCH.flags, abbreviations=True)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("-n 2 cmd -n 3", "-np 2 cmd -n 3"),
        ("-n2 cmd", "-np 2 cmd"),
        ("--number=2 cmd", "-np 2 cmd"),
        ("--number 2 -- -cmd", "-np 2 -cmd"),
        ("--pair A 1 cmd", "-x A=1 cmd"),
        ("--host a --number 2 --host b:2 cmd", "--hosts a,b:2 -np 2 cmd"),
        ("--anyway cmd", "cmd"),
        ("", ""),
    ],
)
def test_flags_become_ours_and_the_command_stays_as_it_is(words, arguments):
    assert translate(LAUNCH, words.split()).arguments == arguments.split()


@pytest.mark.parametrize(
    ("launcher", "words"), [(EITHER, "-pair A 2"), (EITHER, "--n 2"), (SHORT, "--num 2"), (SHORT, "--numb=2")]
)
def test_programs_differ_in_how_flags_may_be_spelt(launcher, words):
    with pytest.raises(UsageError, match="not understood"):
        translate(LAUNCH, words.split())
    assert translate(launcher, words.split()).arguments[-1].endswith("2")


def test_ignored_flags_are_told_in_one_line_with_reasons():
    told = translate(LAUNCH, ["--quick", "--queue", "a", "--queue", "b", "cmd"]).description()
    assert told == "ignored: --quick (it is quick); --queue a, --queue b (there is no queue)"
    assert translate(LAUNCH, ["cmd"]).description() == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--elastic 2 cmd", "launch --elastic 2: it is not elastic"),
        ("--anyway=1 cmd", "launch --anyway takes no value, and was given '1': leave it out"),
        ("--pair A", "launch --pair lacks a value: give --pair NAME VALUE"),
        ("--numbr 2", "launch --numbr is not understood: did you mean --number?"),
        ("--autotune", "launch --autotune is not understood: see distrun-compat launch --help"),
        ("-q 2", "launch -q is not understood: see distrun-compat launch --help"),
    ],
)
def test_what_cannot_be_met_costs_one_sentence(words, sentence):
    with pytest.raises(UsageError) as error:
        translate(LAUNCH, words.split())
    assert str(error.value).startswith(sentence)


def test_an_abbreviation_of_two_flags_is_none():
    with pytest.raises(UsageError, match="short --qu is not understood"):
        translate(SHORT, ["--qu"])


@pytest.mark.parametrize("name", NAMES)
def test_what_flags_become_are_options_of_ours(name):
    own = own_options(distrun)
    table = program(name)
    templates = [row.effect.words for row in table.flags if isinstance(row.effect, Becomes) and not row.effect.convert]
    words = [*table.defaults, *(word for template in templates for word in template.split())]
    assert [word for word in words if word.startswith("-") and word not in own] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_table_has_two_rows_for_one_spelling(name):
    table = program(name)
    spellings = [name.lstrip("-") if table.any_dashes else name for row in table.flags for name in set(row.names)]
    assert sorted(set(spellings)) == sorted(spellings)
