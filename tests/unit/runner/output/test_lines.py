"""Bytes of many ranks become tidy lines, and none is lost."""

from hypothesis import given, strategies as st

from distrun.runner.output.lines import LONGEST, Console, LineSplitter


def test_pieces_end_where_lines_do():
    splitter = LineSplitter()
    assert splitter.feed(b"a\nb\r\nc\rd") == [b"a\n", b"b\r\n", b"c\r"]
    assert splitter.has_partial
    assert splitter.feed(b"e\n\n") == [b"de\n", b"\n"]
    assert splitter.flush() == b""


def test_a_line_without_end_is_passed_on_before_it_fills_the_memory():
    splitter = LineSplitter()
    passed = [piece for _ in range(1000) for piece in splitter.feed(b"x" * 1000)]
    assert max(map(len, passed)) < LONGEST + 1000
    assert sum(map(len, passed)) + len(splitter.flush()) == 1_000_000


@given(st.lists(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\xff", b"bc"])).map(b"".join)))
def test_no_byte_is_lost_however_the_stream_is_cut(chunks):
    splitter = LineSplitter()
    pieces = [piece for chunk in chunks for piece in splitter.feed(chunk)]
    assert b"".join(pieces) + splitter.flush() == b"".join(chunks)
    assert all(piece.endswith((b"\n", b"\r")) for piece in pieces)


def test_every_line_has_the_tag_of_its_rank_once_and_no_other_rank_writes_on_it():
    console = Console()
    assert console.compose(0, b"[0] ", [b"a\n", b"b\n"]) == b"[0] a\n[0] b\n"
    assert console.compose(1, b"[1] ", [b"c\n"]) == b"[1] c\n"
    assert console.compose(0, b"[0] ", [b"loading"]) == b"[0] loading"
    assert console.compose(0, b"[0] ", [b" more"]) == b" more"
    assert console.compose(1, b"[1] ", [b"hello\n"]) == b"\n[1] hello\n"
    assert console.compose(0, b"[0] ", [b" done\n"]) == b"[0]  done\n"


def test_progress_bars_are_redrawn_in_their_place():
    console = Console(is_terminal=True)
    assert console.compose(0, b"[0] ", [b"10%\r", b"20%\r"]) == b"[0] 10%\r[0] 20%\r"
    assert console.compose(1, b"[1] ", [b"5%\r"]) == b"\x1b[K[1] 5%\r"
    assert console.compose(1, b"[1] ", [b"\n"]) == b"\n"


def test_the_console_is_left_at_the_beginning_of_a_line():
    console = Console()
    assert console.end_line() == b""
    console.compose(0, b"", [b"unfinished"])
    assert console.end_line() == b"\n"
    assert console.end_line() == b""
