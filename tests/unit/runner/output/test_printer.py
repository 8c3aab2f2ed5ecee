"""The printer: its output, and that nothing a terminal does stops anything else."""

from __future__ import annotations

import os
import queue
import re
import threading

import pytest
from in_process.calls import DEADLINE, started

from distrun.errors import UsageError
from distrun.runner.decisions.events import OutputClosed, Printed
from distrun.runner.output.printer import Printer, Style
from distrun.runner.output.sinks import DescriptorSink, RankFiles, TextSink

STYLE = Style()


class Paper:
    """A sink that keeps what is printed, can be a terminal, blocked or closed."""

    def __init__(self, is_terminal: bool = False) -> None:
        self.is_terminal = is_terminal
        self.identity: object = id(self)
        self.data = b""
        self.unblocked = threading.Event()
        self.unblocked.set()
        self.written = threading.Event()
        self.closed = False

    def write(self, data: bytes) -> None:
        assert self.unblocked.wait(DEADLINE)
        if self.closed:
            raise BrokenPipeError
        self.data += data
        self.written.set()


def printed(*outputs, style=STYLE, out=None, err=None, failure_report=None, files=None, posted=None):
    """Print all of it; returns what is on stdout and stderr, and the bytes acknowledged. `posted` gets the events."""
    out, err, events, acknowledged = out or Paper(), err or Paper(), queue.SimpleQueue(), []
    posted = [] if posted is None else posted
    printer = Printer(out, err, style, files, events.put)
    printer.start()
    for rank, stream, data in outputs:
        printer.output(rank, stream, data, acknowledged.append)
    printer.close(failure_report)
    while Printed() not in posted:
        posted.append(events.get(timeout=DEADLINE))
    return out.data, err.data, sum(acknowledged)


def test_lines_have_tags_and_streams_stay_apart():
    assert printed((0, "stdout", b"a\n"), (1, "stderr", b"b\n")) == (b"[0] a\n", b"[1] b\n", 4)


def test_without_tags_bytes_pass_as_they_are():
    assert printed((0, "stdout", b"\xff\x00\nx"), style=Style(tags=False))[0] == b"\xff\x00\nx"


def test_each_line_begins_with_the_time_then_the_tag_also_in_files(tmp_path):
    files = RankFiles(tmp_path, 1, [0])
    outputs = [(0, "stdout", b"a\nb"), (0, "stdout", b"c\n\nd"), (0, "stderr", b"\xff")]
    out, err, count = printed(*outputs, style=Style(timestamps=True), files=files)
    time = rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "
    lines = [re.fullmatch(time + rb"(.*)\n", line)[1] for line in out.splitlines(keepends=True)]
    assert lines == [b"[0] a", b"[0] bc", b"[0] ", b"[0] d"]
    assert re.fullmatch(time + rb"\[0\] \xff\n", err)
    assert re.fullmatch(rb"%sa\n%sbc\n%s\n%sd" % ((time,) * 4), files.path(0, "stdout").read_bytes())
    assert re.fullmatch(time + rb"\xff", files.path(0, "stderr").read_bytes())
    assert count == 8


def test_without_tags_lines_have_their_time_alone():
    assert re.fullmatch(rb"[\d-]+ [\d:.]+ x\n", printed((0, "stdout", b"x"), style=Style(False, timestamps=True))[0])


def test_an_unfinished_last_line_is_printed_and_ended_before_the_failure_report():
    out, err, _ = printed((0, "stdout", b"a"), (0, "stderr", b"b"), failure_report="the report \udcff")
    assert out == b"[0] a\n"
    assert err == b"[0] b\nthe report \xff\n"


def test_only_the_ranks_asked_for_are_shown_but_all_are_acknowledged():
    outputs = [(rank, "stdout", b"x\n") for rank in range(4)]
    assert printed(*outputs, style=Style(ranks=frozenset({1, 3}))) == (b"[1] x\n[3] x\n", b"", 8)


def test_tags_have_colours_on_a_terminal_unless_no_color_is_set(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert printed((0, "stdout", b"a\n"), out=Paper(True))[0] == b"\x1b[36m[0]\x1b[0m a\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed((0, "stdout", b"a\n"), out=Paper(True))[0] == b"[0] a\n"


def test_two_streams_on_one_terminal_share_its_cursor():
    out, err = Paper(), Paper()
    err.identity = out.identity
    printed((0, "stdout", b"x" * 70000), (1, "stderr", b"b\n"), out=out, err=err)
    assert err.data.startswith(b"\n[1] b\n")


@pytest.mark.parametrize(("terminal", "prompts"), [(True, False), (False, True)])
def test_a_prompt_is_shown_though_its_line_has_no_end(terminal, prompts, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out, events = Paper(terminal), queue.SimpleQueue()
    printer = Printer(out, Paper(), Style(prompts=prompts), None, events.put)
    printer.start()
    printer.output(0, "stdout", b"(Pdb) ", lambda count: None)
    assert out.written.wait(DEADLINE)
    assert out.data == b"[0] (Pdb) "
    printer.close()
    assert isinstance(events.get(timeout=DEADLINE), Printed)


def test_a_blocked_terminal_blocks_neither_output_nor_acknowledges_it():
    out, events, acknowledged = Paper(), queue.SimpleQueue(), []
    out.unblocked.clear()
    printer = Printer(out, Paper(), Style(), None, events.put)
    printer.start()
    for _ in range(100):
        printer.output(0, "stdout", b"x\n", acknowledged.append)  # returns at once
    printer.close()
    assert acknowledged == []
    out.unblocked.set()
    assert isinstance(events.get(timeout=DEADLINE), Printed)
    assert sum(acknowledged) == 200


def test_a_reader_that_is_gone_is_reported_once_and_the_rest_acknowledged():
    out, posted = Paper(), []
    out.closed = True
    assert printed(*[(0, "stdout", b"x\n")] * 3, out=out, posted=posted) == (b"", b"", 6)
    assert posted == [OutputClosed(), Printed()]


def test_a_full_disk_is_reported_with_its_stream():
    posted = []
    with open("/dev/full", "wb", buffering=0) as full:
        out = DescriptorSink(full.fileno())
        out.data = b""
        printed((0, "stdout", b"x\n"), out=out, posted=posted)
    assert posted == [OutputClosed("stdout cannot be written: No space left on device"), Printed()]


def test_files_hold_every_byte_whatever_is_shown(tmp_path):
    files = RankFiles(tmp_path / "logs", 11, range(11))
    printed(
        (3, "stdout", b"a\xff"), (3, "stderr", b"b"), (3, "stdout", b"c"), files=files, style=Style(ranks=frozenset())
    )
    assert (tmp_path / "logs/rank.03/stdout").read_bytes() == b"a\xffc"
    assert (tmp_path / "logs/rank.03/stderr").read_bytes() == b"b"
    assert (tmp_path / "logs/rank.10/stdout").read_bytes() == b""


@pytest.mark.parametrize(("size", "stale"), [(2, "rank.5"), (11, "rank.5"), (6, "server.0"), (6, "rank.05")])
def test_files_of_another_job_are_not_mixed_with_this_ones(tmp_path, size, stale):
    (tmp_path / stale).mkdir()
    with pytest.raises(UsageError, match=f"has the output of another job, which had a {stale} and would mix with"):
        RankFiles(tmp_path, size, range(size))
    assert [path.name for path in tmp_path.iterdir()] == [stale]
    RankFiles(tmp_path, size, range(size), grows=True)


def test_the_same_job_writes_its_files_again_and_nodes_write_theirs_side_by_side(tmp_path):
    for ranks in [0, 1], [2, 3], [0, 1]:
        RankFiles(tmp_path, 4, ranks, first_server=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank.0", "rank.1", "rank.2", "server.0"]


def test_a_full_disk_costs_the_copy_and_not_the_job(tmp_path):
    files = RankFiles(tmp_path, 1, [0])
    files.path(0, "stdout").unlink()
    files.path(0, "stdout").symlink_to("/dev/full")
    out, err, _ = printed((0, "stdout", b"a\n"), (0, "stdout", b"b\n"), files=files)
    assert out == b"[0] a\n[0] b\n"
    assert err.count(b"--output-dir is no longer written: No space left on device") == 1


def test_a_non_blocking_descriptor_gets_all_bytes():
    read, write = os.pipe()
    os.set_blocking(write, False)
    data = bytes(300_000)
    writing = started(lambda: (DescriptorSink(write).write(data), os.close(write)))
    with open(read, "rb") as pipe:
        assert pipe.read() == data
    writing.result(DEADLINE)


def test_a_text_stream_shows_what_is_no_text_as_escapes(tmp_path):
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        TextSink(stream).write("ä\n".encode() + b"\xff\n")
    assert (tmp_path / "out").read_bytes() == b"\\xe4\n\\xff\n"
