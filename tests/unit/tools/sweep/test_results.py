"""The results of a sweep: records, the ranking, the study and the table."""

import json
import math
import re
import resource
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timedelta

import pytest

from distrun.errors import UsageError
from distrun.tools.sweep.output import Metric
from distrun.tools.sweep.policy.trials import Member, State, Trial
from distrun.tools.sweep.results.ending import write_results
from distrun.tools.sweep.results.ranking import best, groups, ranked
from distrun.tools.sweep.results.record import Header, Record, read
from distrun.tools.sweep.results.sentences import ended, summary
from distrun.tools.sweep.results.study import write_study
from distrun.tools.sweep.results.table import PlainTable, lines
from distrun.tools.sweep.space.command_line import parse_words


def trial(number, value=None, state=State.COMPLETE, **values):
    reports = [] if value is None else [(1, 2 * value), (2, value)]
    return Trial(number, values, state, 1, (Member(0, number, "a", 0),), reports=reports, seconds=1.5)


TRIALS = [
    trial(0, 3.0, x="a"),
    trial(1, 1.0, State.PRUNED, x="b"),
    trial(2, math.nan, x="a"),
    trial(3, None, State.FAILED, x="<b>"),
    trial(4, 2.0, x="b"),
]
HEADER = Header(["t.py"], [], {"x": "a|b"}, "grid", True)


def test_the_best_is_first_and_what_diverged_or_failed_is_last():
    assert [item.number for item in ranked(TRIALS, True)] == [4, 0, 1, 2, 3]
    assert [item.number for item in ranked(TRIALS, False)] == [0, 4, 1, 2, 3]
    assert best(TRIALS, True).number == 4
    assert best(TRIALS[1:4], True) is None
    assert best([trial(3, 1.0), trial(2, 1.0)], True).number == 2


def test_trials_that_differ_in_the_seed_are_one_group():
    trials = [trial(n, float(n), lr="0.1" if n < 3 else "0.2", seed=str(n % 3)) for n in range(6)]
    first, second = groups(trials, minimizes=False)
    assert (first.values, first.mean, first.deviation) == ({"lr": "0.2"}, 4.0, 1.0)
    assert second.mean == 1.0
    assert summary(trials, False, "it is there")[1:] == ["4 ± 1 over 3 seeds (lr=0.2)", "1 ± 1 over 3 seeds (lr=0.1)"]


def test_a_record_is_read_as_it_was_written_and_survives_a_torn_line(tmp_path):
    header = Header(["t.py"], ["--f"], {"x": "a|b", "lr": "log:0.1..1.0"}, "search", True)
    record = Record(tmp_path / "s", header)
    for item in TRIALS:
        record.began(item, ["t.py"])
        record.ended(item, ["t.py"])
    record.began(trial(5, x="b"), ["t.py"])
    record.close()
    with (tmp_path / "s" / "trials.jsonl").open("a") as file:
        file.write('{"trial":4,"state":"complete","params":[1]}\n[4]\n{"trial":4,"sta')
    earlier = read(str(tmp_path / "s" / "study.db"))
    assert earlier.header == header
    assert earlier.header.template.parameters == parse_words(["t", "x=a|b", "lr=log:0.1..1.0"]).parameters
    assert [item.state for item in earlier.trials] == [item.state for item in TRIALS] + [State.WAITING]
    assert earlier.trials[4].reports == TRIALS[4].reports
    assert math.isnan(earlier.trials[2].value)
    assert earlier.unfinished == [{"x": "<b>"}, {"x": "b"}]
    with pytest.raises(UsageError, match="no sweep that can be resumed"):
        read(str(tmp_path))
    again = Record(tmp_path / "s", header)  # its first line does not go on with the torn one
    again.ended(trial(5, 7.0, x="b"), ["t.py"])
    again.close()
    assert read(str(tmp_path / "s")).trials[5].value == 7.0


@contextmanager
def full_disk(size):
    """Have all files end at so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_for_which_there_was_no_room_are_written_when_there_is(tmp_path):
    record = Record(tmp_path, HEADER)
    with full_disk(100):
        record.ended(TRIALS[0], ["t.py"])
        assert record.problem == "File too large"
        record.ended(TRIALS[1], ["t.py"])
    record.ended(TRIALS[4], ["t.py"])
    assert record.problem is None
    record.close()
    assert [item.number for item in read(str(tmp_path)).trials] == [0, 1, 4]


def test_steps_that_are_no_numbers_are_strings_in_json(tmp_path):
    odd = trial(0, 1.0, x="a")
    odd.reports = [(math.inf, 2.0), (math.nan, 1.0)]
    record = Record(tmp_path, HEADER)
    record.ended(odd, ["t.py"])
    record.close()
    write_results(tmp_path, parse_words(["t.py", "x=a|b"]), 1, True, [odd])
    for name in ("trials.jsonl", "best.json"):
        assert json.loads((tmp_path / name).read_text(), parse_constant=pytest.fail)["step"] == "nan"
    (found,) = read(str(tmp_path)).trials
    assert found.reports[0] == (math.inf, 2.0)
    assert math.isnan(found.step)


def test_a_sweep_that_is_resumed_on_a_full_disk_can_be_resumed_later(tmp_path):
    Record(tmp_path, HEADER).close()
    with full_disk(10), pytest.raises(UsageError, match="cannot be written: File too large"):
        Record(tmp_path, HEADER)
    assert read(str(tmp_path)).header == HEADER
    Record(tmp_path, HEADER).close()


def test_one_sweep_at_a_time_writes_a_record(tmp_path):
    record = Record(tmp_path, HEADER)
    with pytest.raises(UsageError, match="is in use: another distrun sweep writes its results there; wait until"):
        Record(tmp_path, Header(["other.py"], [], {}, "grid", False))
    assert read(str(tmp_path)).header == HEADER
    record.close()
    Record(tmp_path, HEADER).close()


def test_the_best_is_told_even_if_no_file_can_be_written(tmp_path):
    with full_disk(10):
        said = write_results(tmp_path, parse_words(["t.py", "x=a|b"], "python"), 2, True, TRIALS)
    assert said == [
        f"3 complete, 1 pruned, 1 failed; the results cannot be written to {tmp_path}: File too large",
        "the best is trial 4 with 2 at step 2: x=b",
        "its command: distrun -np 2 python t.py --x=b",
    ]


def load_study(folder):
    optuna = pytest.importorskip("optuna")
    storages = optuna.storages
    backend = storages.journal.JournalFileBackend(str(folder / "study.db"))
    return optuna.load_study(study_name="sweep", storage=storages.JournalStorage(backend))


def test_a_study_has_all_trials_under_their_numbers_with_what_else_there_is_to_know(tmp_path):
    pytest.importorskip("optuna")
    failed = trial(3, 5.0, State.FAILED, x="b")
    failed.failure_text = "it </pre> failed"
    failed.began = time.monotonic() - 3600
    trials = [trial(4, 2.0, x="b"), failed, *TRIALS[:3], trial(5, 7.0, State.WAITING, x="a")]
    assert write_study(tmp_path / "study.db", trials, parse_words(["t.py", "x=a|b"], "python"), minimizes=True)
    study = load_study(tmp_path)
    assert [item.state.name for item in study.trials] == ["COMPLETE", "PRUNED", "PRUNED", "FAIL", "COMPLETE", "WAITING"]
    assert [item.user_attrs.get("trial") for item in study.trials] == [0, 1, 2, 3, 4, 5]
    assert study.trials[5].user_attrs["state"] == "cut short"  # it was running at the end of the sweep
    assert summary(trials, True, "here") == ["3 complete, 1 pruned, 1 failed, 1 cut short; here"]
    assert study.best_value == 2.0
    assert study.trials[0].intermediate_values == {0: 6.0, 1: 3.0}
    assert study.trials[2].intermediate_values == {}
    found = study.trials[3]
    assert found.user_attrs == {
        "trial": 3,
        "state": "failed",
        "step": 2,
        "hosts": "a",
        "command": ["python", "t.py", "--x=b"],
        "story": "it </pre> failed",
    }
    assert found.duration == timedelta(seconds=1.5)
    assert timedelta(seconds=3590) < datetime.now() - found.datetime_start


def test_a_study_is_written_at_once_though_a_launcher_was_killed_while_it_wrote_one(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    template = parse_words(["t.py", "x=a|b"])
    path = tmp_path / "study.db"
    write_study(path, TRIALS[:1], template, True)
    for name in ("study.db", ".study.db"):
        (tmp_path / f"{name}.lock").symlink_to(name)
    (tmp_path / ".study.db").write_bytes(path.read_bytes()[:20])
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waits for a lock that nobody holds"))
    write_study(path, TRIALS[:2], template, True)
    (tmp_path / "study.db.lock").unlink()
    assert len(load_study(tmp_path).trials) == 2
    assert not (tmp_path / ".study.db").exists()


def test_the_end_says_how_to_see_the_study_or_why_there_is_none(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    folder = tmp_path / "my sweep"
    folder.mkdir()
    template = parse_words(["t.py", "x=1e15..1.0000000001e15/0.1"])

    def end(x):
        said = write_results(folder, template, 1, True, [trial(0, 1.0, x=x)])
        return said[0].removeprefix(f"1 complete; all of it is in {folder}")

    assert end(1e15) == f", and optuna-dashboard '{folder}/study.db' shows it"
    assert end(1e15 + 0.1).startswith(", but no study.db: The value 1000000000000000.1")
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert end(1e15) == ""


def test_the_mean_of_values_whose_sum_is_infinite_is_finite():
    (group,) = groups([trial(n, 1e308, seed=str(n)) for n in range(3)], True)
    assert group.mean == 1e308


def test_the_table_shows_choices_as_they_are_written():
    written = ("[/a]", "[red]b", ":fire:", "[64,64]")
    shown = "\n".join(lines([trial(n, 1.0, x=text) for n, text in enumerate(written)], "title", 80, 24, 0.0))
    assert [text for text in written if text not in shown] == []


def test_the_table_is_best_first_and_fits_the_terminal():
    shown = lines(ranked([*TRIALS, *(trial(n, 9.0, x="a") for n in range(5, 99))], True), "title", 80, 24, 0.0)
    assert len(shown) <= 16
    assert "title" in shown[0]
    assert all(word in shown[2] for word in ("trial", "state", "value", "x"))
    assert " 2 " in next(line for line in shown if "complete" in line)


def test_without_a_terminal_each_trial_and_each_half_minute_has_a_line():
    said = []
    view = PlainTable(said.append, True, 9, now=0.0)
    everything = {item.number: item for item in TRIALS}
    view.see(everything, 29.0)
    view.ended(TRIALS[0], everything)
    view.see(everything, 30.0)
    assert said == [
        "trial 0 complete: 3 at step 2 (x=a), 1.5 s; the best is trial 4 with 2",
        "5 of 9 trials: 3 complete, 1 pruned, 1 failed",
    ]
    assert ended(TRIALS[4], True, TRIALS).endswith("it is the best")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"loss: 0.5s", 0.5),
        (b"loss: 12.5ms/step", 12.5),
        (b"loss: 0.25M", 0.25),
        (b"loss: 0.5e", 0.5),
        (b"loss: 5e3s", 5000.0),
        (b"loss: 1,234.5", None),
        (b"loss: 12,5", None),
        (b"loss: 1e-5,6", None),
        (b"loss: 12:30", None),
        (b"loss: 1.2.3", None),
        (b"loss: 0x1F", None),
        (b"loss: 45/100", None),
        (b"loss: 1'234", None),
        (b"loss: 12/s", 12.0),
        (b"{'loss: 12'}", 12.0),
        (b"loss: 5_000", None),
        (b"loss=0.5,acc=1", 0.5),
        (b"(loss 0.5, 3)", 0.5),
        (b"loss: 3.", 3.0),
        (b"loss: .5", 0.5),
        (b"loss5: 99", None),
        (b"loss-1: 5", None),
        (b"loss: info", None),
        (b"loss: nan", math.nan),
        (b"loss" + b" " * 100_000 + b"x", None),
        (b"loss " + b"1" * 100_000 + b"_", None),
        (b"loss: 0.5 - val_loss: 0.25", 0.5),
        (b"loss=1e-3, loss=2E+1", 20.0),
        (b'{"loss": -3., "x": 1}', -3.0),
        (b"epoch 3 Loss 0.25", 0.25),
        (b"loss is small 3", None),
        (b"my_loss: 3 lossy: 4", None),
        (b"loss: inf", math.inf),
    ],
)
def test_a_metric_is_the_last_number_after_its_name(line, value):
    assert Metric("loss").last(line) == pytest.approx(value, nan_ok=True)


def test_a_metric_may_have_its_separator_in_its_name():
    assert Metric("loss:").last(b"loss:0.5") == 0.5
    assert Metric("v\udce4rlust").last(b"v\xe4rlust: 0.5") == 0.5
    assert Metric("acc@1").last(b"acc@1 0.5 acc@10 0.9") == 0.5


@pytest.mark.parametrize(
    ("columns", "titles"),
    [
        (100, "trial state value step time lr width optimizer weight_decay dropout host"),
        (80, "trial state value time lr width optimizer weight_decay dropout"),
        (60, "tr… value lr wi… opti… weigh… dro…"),
    ],
)
def test_a_narrow_table_leaves_out_columns_before_it_cuts_any_number(columns, titles):
    tried = {"lr": 0.01, "width": 32, "optimizer": "adamw", "weight_decay": 0.0001, "dropout": 0.25}
    coloured = lines([trial(n, n + 0.12345, **tried) for n in range(3)], "title", columns, 24, 0.0)
    shown = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in coloured]
    assert max(map(len, shown)) <= columns
    assert shown[2].split() == titles.split()
    assert all(text in shown[4] for text in ("0.12345", "0.01", "32", "adamw", "0.0001", "0.25"))
