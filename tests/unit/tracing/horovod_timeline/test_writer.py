"""The file grows while the job runs, can be read at any time, and is complete at the end."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
from shell import wait_until

from distrun.errors import UsageError
from distrun.tracing import recording
from distrun.tracing.horovod_timeline import writer
from distrun.tracing.horovod_timeline.writer import HorovodTimeline
from distrun.tracing.ring import Ring


@pytest.fixture
def ring(monkeypatch):
    monkeypatch.setattr(recording, "ring", Ring())
    monkeypatch.setattr(writer, "_EVERY", 0.001)
    return recording.ring


def operate(ring, name):
    began = writer.time.monotonic_ns()
    request = SimpleNamespace(process_set=0, nbytes=4)
    made = SimpleNamespace(label=f"allreduce {name!r}", request=request, cache_id=-1, submitted=began)
    ring.done([made], began)


def processes(text):
    return [entry["args"]["name"] for entry in json.loads(text) if entry.get("name") == "process_name"]


def test_each_line_is_there_soon_and_the_array_is_closed_at_the_end(ring, tmp_path):
    file = tmp_path / "t.json"
    operate(ring, "before")
    timeline = HorovodTimeline(str(file), False, "GLOO", lambda: True)
    assert file.read_text() == "[\n"
    for name in ("a", "b"):
        operate(ring, name)
        wait_until(lambda name=name: f'"allreduce.{name}"' in file.read_text())
    text = file.read_text()
    assert text.endswith("},\n")
    assert processes(text[: -len(",\n")] + "]") == ["allreduce.a", "allreduce.b"]
    operate(ring, "late")
    timeline.end()
    assert processes(file.read_text()) == ["allreduce.a", "allreduce.b", "allreduce.late"]


def test_a_timeline_without_operations_is_an_empty_array(ring, tmp_path):
    file = tmp_path / "t.json"
    HorovodTimeline(str(file), True, "GLOO", lambda: True).end()
    assert json.loads(file.read_text()) == []


def test_cycles_are_recorded_during_the_timeline_only(ring, tmp_path):
    timeline = HorovodTimeline(str(tmp_path / "t.json"), True, "GLOO", lambda: True)
    assert ring.marks_cycles
    ring.cycle(1)
    timeline.end()
    assert not ring.marks_cycles
    assert [entry["name"] for entry in json.loads((tmp_path / "t.json").read_text())] == ["CYCLE_START"]


def test_a_rank_that_comes_to_be_the_first_begins_the_file_then(ring, tmp_path):
    file, first = tmp_path / "t.json", []
    file.write_text("of the rank that is gone")
    timeline = HorovodTimeline(str(file), False, "GLOO", lambda: bool(first))
    operate(ring, "other")
    wait_until(lambda: len(timeline._names) == 2)
    assert file.read_text() == "of the rank that is gone"
    first.append(0)
    wait_until(lambda: file.read_text().startswith("["))
    operate(ring, "own")
    timeline.end()
    assert "allreduce.own" in processes(file.read_text())


def test_a_file_that_cannot_be_written_is_refused(ring, tmp_path):
    with pytest.raises(UsageError, match="there is no folder '/none': make it"):
        HorovodTimeline("/none/t.json", False, "GLOO", lambda: True)
    with pytest.raises(UsageError, match="is a folder: give the name of a file"):
        HorovodTimeline(str(tmp_path), False, "GLOO", lambda: True)
    with pytest.raises(UsageError, match="'/dev/full' cannot be written: No space left on device: give another file"):
        HorovodTimeline("/dev/full", False, "GLOO", lambda: True)
    HorovodTimeline("/none/t.json", False, "GLOO", lambda: False).end()  # another rank's, on another host


def test_a_disk_that_becomes_full_ends_the_timeline_in_one_sentence(ring, tmp_path, monkeypatch):
    warnings = []
    monkeypatch.setattr(writer.log, "warning", lambda text, *args: warnings.append(text % args))
    timeline = HorovodTimeline(str(tmp_path / "t.json"), False, "GLOO", lambda: True)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, timeline._descriptor)
    os.close(full)
    operate(ring, "a")
    timeline.end()
    assert warnings == [f"the timeline {tmp_path / 't.json'} ends here: No space left on device"]
