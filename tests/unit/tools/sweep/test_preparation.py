"""From options to the plan of a sweep, also of one that is resumed."""

import sys

import click
import pytest

from distrun.errors import UsageError
from distrun.tools.sweep.command import sweep
from distrun.tools.sweep.preparation import prepare_sweep


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Returns the plan of a command line; the results are in `out`."""
    monkeypatch.chdir(tmp_path)
    plans = []

    def prepare(*words):
        for plan in plans:  # one sweep at a time writes the results
            plan.record.close()
        options = sweep.make_context("sweep", list(words)).params
        plans.append(plan := prepare_sweep({**options, "nnodes": None, "rdzv_endpoint": None}))
        return plan

    yield prepare
    for plan in plans:
        plan.record.close()


def test_a_sweep_that_is_resumed_keeps_what_it_is_unless_it_is_told_otherwise(prepared):
    pytest.importorskip("optuna")
    chosen = ("--metric", "loss", "--prune", "--prune-after", "4", "--trials", "7", "--seed", "3", "--maximize")
    first = prepared("--output", "out", *chosen, "true", "x=1..9")
    for words in ((), ("--maximize", "true", "x=1..9")):
        again = prepared("--resume", "out", *words)
        assert again.source.total == 7
        assert again.metric.last(b"loss 2") == 2.0
        assert not again.minimizes
        assert [again.halving.judge(trial, 4, float(trial)) for trial in (2, 1)] == [True, False]
        assert again.halving.judge(3, 3, 0.0)
        assert again.record.folder == first.record.folder
    assert again.source.ask(0) == first.source.ask(0)
    changed = prepared("--resume", "out", "--trials", "9", "--metric", "acc")
    assert changed.source.total == 9
    assert changed.metric.last(b"loss 2 acc 1") == 1.0
    assert prepared("--resume", "out").source.total == 9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--direction", "maximize"), "a sweep of another direction"),
        (("--maximize",), "a sweep of another direction"),
        (("--seeds", "3"), "a sweep of another number of seeds"),
        (("--output", "other"), "--output 'other' is another directory than --resume 'out'"),
        (("--maximize", "true", "x=1|3"), "of another set of parameters, and of another direction"),
        (("false", "x=1|2"), "a sweep of another command"),
        (("--direction", "minimize", "--maximize"), "contradict each other"),
    ],
)
def test_a_sweep_is_not_resumed_as_another_one(prepared, tmp_path, words, said):
    prepared("--output", "out", "--grid", "--seeds", "2", "-np", "1", "true", "x=1|2")
    before = (tmp_path / "out" / "sweep.json").read_text()
    with pytest.raises(UsageError, match=said):
        prepared("--resume", "out", *words)
    assert (tmp_path / "out" / "sweep.json").read_text() == before


def test_a_sweep_that_is_resumed_with_its_command_need_not_be_told_the_rest_again(prepared):
    chosen = ("--grid", "--seeds", "2", "--maximize", "-np", "2", "-H", "localhost:2")
    prepared("--output", "out", *chosen, "true", "x=1|2")
    for words in (("true", "x=1|2"), ("--output", "./out"), ("--direction", "maximize")):
        again = prepared("--resume", "out", "-H", "localhost:2", *words)
        assert (again.source.total, again.minimizes, again.limits.ranks) == (4, False, 2)


def test_a_search_is_not_resumed_as_a_grid(prepared):
    pytest.importorskip("optuna")
    prepared("--output", "out", "true", "x=1|2")
    with pytest.raises(UsageError, match="a sweep of another kind"):
        prepared("--resume", "out", "--grid")


def test_a_script_whose_name_has_a_place_in_it_is_not_missed(prepared):
    plan = prepared("--output", "out", "--grid", "train_{x}.py", "x=a|b")
    assert plan.template.command({"x": "a"})[1:] == ["train_a.py"]
    with pytest.raises(UsageError, match=r"there is no script 'train_\{y\}\.py'"):
        prepared("--output", "other", "--grid", "train_{y}.py", "x=a|b")
    with pytest.raises(UsageError, match=r"there is no script 'a{300}\.py'"):
        prepared("--output", "other", "--grid", f"{'a' * 300}.py", "x=a|b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--metric", ""), "--metric '' is no name: give the word in front of the number"),
        (("--metric", " "), "--metric ' ' is no name"),
        (("--trials", "5"), "--trials 5 has no effect"),
        (("--seed", "5"), "--seed 5 is that of a search, and has no effect without one"),
        (("--prune-after", "5"), "--prune-after 5 has no effect without --prune"),
        (("--prune-factor", "5"), "--prune-factor 5 has no effect without --prune"),
        (("--output", "a" * 300), "cannot be written: File name too long"),
        (("--resume", "a" * 300), r"is no sweep that can be resumed \((File name too long|No such file.*)\)"),
    ],
)
def test_names_that_are_none_and_options_without_effect_are_refused(prepared, words, said):
    with pytest.raises(UsageError, match=said):
        prepared("--grid", *words, "true", "x=1|2")


def test_sweeps_that_begin_in_the_same_second_have_folders_of_their_own(prepared, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda form: "sweep-now")
    folders = [str(prepared("--grid", "true", "x=1|2").record.folder) for _ in range(3)]
    assert folders == ["sweep-now", "sweep-now-2", "sweep-now-3"]


def test_a_resumed_search_does_not_repeat_what_its_seed_chose_before(prepared, tmp_path):
    pytest.importorskip("optuna")
    values = prepared("--output", "out", "--seed", "3", "true", "x=0..1.5").source.ask(0)
    with (tmp_path / "out" / "trials.jsonl").open("a") as file:
        file.write(f'{{"trial":0,"state":"complete","params":{{"x":{values["x"]}}},"reports":[[1,2.0]]}}\n')
    assert prepared("--resume", "out").source.ask(1) != values


def test_a_search_among_more_whole_numbers_than_can_be_counted_is_prepared(prepared):
    pytest.importorskip("optuna")
    assert 1 <= prepared("--output", "out", "true", f"x=1..1{'0' * 20}").source.ask(0)["x"] <= 10**20


@pytest.mark.parametrize(("words", "is_said"), [(("true",), True), (("true", "x=1"), True), (("true", "x=1|2"), False)])
def test_a_sweep_in_which_nothing_varies_says_how_something_does(prepared, words, is_said):
    *_, note = prepared("--grid", *words).first.notes
    assert ("nothing varies: give a parameter, as in lr=log:1e-4..1e-1, or --seeds" in note) == is_said


def test_a_sweep_has_defaults(prepared):
    plan = prepared("--output", "out", "--grid", "--prune", "true", "x=1|2")
    assert plan.metric is None
    assert plan.source.total == 2
    assert plan.halving.judge(0, 1, 9.0)


def test_without_optuna_a_search_is_refused_with_the_remedy_and_a_grid_is_not(prepared, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"pip install 'distrun\[sweep\]'"):
        prepared("true", "x=1..2")
    assert prepared("--grid", "true", "x=1..2").source.total == 2


def test_the_time_of_a_sweep_is_a_number():
    for text in ("nan", "inf", "0", "-1"):
        with pytest.raises(click.BadParameter, match="seconds"):
            sweep.make_context("sweep", ["--timeout", text, "true"])
