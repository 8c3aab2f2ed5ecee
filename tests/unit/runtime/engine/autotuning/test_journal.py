"""The journal of tuning: the log file, the line, and what programs get."""

from __future__ import annotations

import csv

import pytest

from distrun.runtime.engine.autotuning import turns
from distrun.runtime.engine.autotuning.chosen import Tuned, autotuned
from distrun.runtime.engine.autotuning.journal import COLUMNS, Journal, start_log
from distrun.runtime.engine.autotuning.policy import Outcome, Row
from distrun.tracing import layout, recording
from distrun.tracing.reader import RingReader, events
from distrun.tracing.ring import Ring

pytestmark = pytest.mark.usefixtures("nothing_tuned")

DEFAULT = {"bucket_bytes": 25 << 20, "first_bucket_bytes": 1 << 20, "wire_dtype": ""}
BEST = {"bucket_bytes": 100 << 20, "first_bucket_bytes": 1 << 20, "wire_dtype": "bfloat16"}
LINE = (
    "bucket_bytes 100 MiB instead of 25 MiB, wire_dtype bfloat16 instead of unchanged: 41.2 ms per step instead of 45.0"
)


def test_rank_0_writes_a_table_and_says_a_line(tmp_path, capsys):
    file = tmp_path / "log.csv"
    file.write_text("of an earlier job")
    start_log(str(file))
    for world in (1, 2):
        journal = Journal("gradients", world, str(file), tells=True)
        journal.add(Row(1, DEFAULT, None, "warm-up"))
        journal.add(Row(2, BEST, 0.0412, "chosen: bucket_bytes=1"))
        journal.end(Outcome(BEST, DEFAULT, 2, 0.0412, 0.045))
    rows = list(csv.DictReader(file.open()))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["world"], row["step"], row["seconds"]) for row in rows[:2]] == [("1", "1", ""), ("1", "2", "0.041200")]
    assert rows[1]["setting"] == "bucket_bytes=104857600 first_bucket_bytes=1048576 wire_dtype=bfloat16"
    assert rows[2]["decision"] == f"end: {LINE}"
    assert [row["world"] for row in rows[3:]] == ["2", "2", "2"]
    assert capsys.readouterr().err == 2 * f"distrun: autotune: {LINE}\n"
    assert [tuned.world for tuned in autotuned()] == [1, 2]


def test_observers_hear_of_what_rank_0_says(monkeypatch):
    monkeypatch.setattr(recording, "ring", Ring())
    Journal("gradients", 1, None, tells=False).end(Outcome(BEST, DEFAULT, 2, 0.0412, 0.045))
    Journal("gradients", 1, None, tells=True).end(Outcome(BEST, DEFAULT, 2, 0.0412, 0.045))
    reader = RingReader(recording.ring.memory)
    (remark,) = events(reader.read())
    assert remark.kind == layout.REMARK
    assert reader.names()[remark.name] == f"autotuned {LINE}"


def test_other_ranks_only_remember(capsys):
    journal = Journal("gradients", 1, None, tells=False)
    journal.add(Row(1, DEFAULT, 1.0, "dropped"))
    journal.end(Outcome(DEFAULT, DEFAULT, 1))
    assert capsys.readouterr().err == ""
    (tuned,) = autotuned()
    assert tuned == Tuned("gradients", DEFAULT, DEFAULT, None, None, 1, 1)
    assert tuned.is_default


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Outcome(DEFAULT, DEFAULT, 0), "gradients: the default remains, there is nothing to choose from"),
        (Outcome(DEFAULT, DEFAULT, 17), "gradients: the default remains, nothing seemed faster"),
        (Outcome(DEFAULT, DEFAULT, 49, 1.0, 1.0), "gradients: the default remains, nothing was clearly faster"),
        (Outcome(DEFAULT, DEFAULT, 9, why="a rank is gone"), "gradients: the default remains, a rank is gone"),
        (Outcome({"fusion_threshold": 0}, {"fusion_threshold": 2048}, 49, 2.0, 12.34), "fusion_threshold 0 bytes "
         "instead of 2 KiB: 2000 ms per step instead of 12340"),
    ],
)  # fmt: skip
def test_the_line_says_why(outcome, line):
    journal = Journal("gradients", 1, None, tells=False)
    journal.end(outcome)
    assert str(autotuned()[0]) == line


def test_a_file_that_cannot_be_written_is_told_once(tmp_path, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(
        "distrun.runtime.engine.autotuning.journal.log.warning", lambda text, *of: told.append(text % of)
    )
    file = str(tmp_path / "no folder" / "log")
    start_log(file)
    assert told.pop() == (
        f"autotune: {file} cannot be written: No such file or directory; correct DISTRUN_AUTOTUNE_LOG"
    )
    journal = Journal("gradients", 1, file, tells=False)
    for _ in range(3):
        journal.add(Row(1, DEFAULT, 1.0, "dropped"))
    assert len(told) == 1


def test_one_tuner_has_the_turn_until_it_gives_it_back():
    first, second = object(), object()
    assert turns.take(first)
    assert turns.take(first)
    assert turns.is_taken()
    assert not turns.take(second)
    turns.give_back(second)
    assert not turns.take(second)
    turns.give_back(first)
    assert turns.take(second)
    turns.note_join()
    assert turns.has_joined()
    turns.begin_world()
    assert not turns.has_joined()
    assert not turns.is_taken()
