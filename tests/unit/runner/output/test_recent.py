"""The last output of ranks, which readers get in the order of its arrival, and in whole lines."""

from __future__ import annotations

import threading

from distrun.runner.output.recent import Recent

MOST = 2 << 20  # bytes of one stream of one rank in a job of one rank


def texts(pieces):
    return b"".join(piece.data for piece in pieces)


def test_each_reader_gets_what_it_has_not_seen_in_the_order_of_arrival():
    recent, seen = Recent(2), {}
    recent.add(0, "stdout", b"a\n")
    recent.add(1, "stderr", b"b\n")
    recent.add(0, "stdout", b"c\n")
    pieces, lost = recent.read(None, seen)
    assert [piece[1:] for piece in pieces] == [(0, "stdout", b"a\n"), (1, "stderr", b"b\n"), (0, "stdout", b"c\n")]
    assert lost == 0
    recent.add(1, "stdout", b"d\n")
    assert texts(recent.read(None, seen)[0]) == b"d\n"
    assert recent.read(None, seen) == ([], 0)
    assert texts(recent.read(1, {})[0]) == b"b\nd\n"


def test_whole_lines_are_forgotten_and_counted():
    recent, seen = Recent(1), {}
    line = b"x" * 999 + b"\n"
    written = bytearray()
    for number in range(4 * MOST // 1500):
        piece = (b"%d" % number + line) * 2
        for data in (piece[:1500], piece[1500:]):  # pieces that end within a line
            recent.add(0, "stdout", data)
            written += data
    pieces, lost = recent.read(None, seen)
    kept = texts(pieces)
    assert written.endswith(kept)
    assert MOST // 4 < len(kept) <= MOST
    assert lost == len(written) - len(kept)
    assert written[: -len(kept)].endswith(b"\n")


def test_a_chatty_rank_does_not_push_out_another():
    recent = Recent(2)
    recent.add(1, "stderr", b"a warning\n")
    for _ in range(100):
        recent.add(0, "stdout", b"y\n" * (1 << 15))
    assert texts(recent.read(1, {})[0]) == b"a warning\n"


def test_a_line_longer_than_all_that_is_kept_is_counted():
    recent = Recent(1)
    for _ in range(2 * MOST >> 16):
        recent.add(0, "stdout", b"z" * (1 << 16))
    pieces, lost = recent.read(0, {})
    assert len(texts(pieces)) + lost == 2 * MOST
    recent.add(0, "stdout", b"end\nnext\n")
    assert texts(recent.read(0, {})[0]).endswith(b"next\n")


def test_a_reader_is_woken_by_output_and_by_the_end():
    recent = Recent(1)
    threading.Timer(0, recent.add, (0, "stdout", b"a")).start()
    count, status = recent.wait(0, 60)
    assert (count, status) == (1, None)
    threading.Timer(0, recent.close, (3,)).start()
    assert recent.wait(count, 60) == (1, 3)
