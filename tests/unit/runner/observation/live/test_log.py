"""The last lines of a rank, however they come."""

from distrun.runner.observation.live.log import KEPT_LINES, Log


def lines(*chunks):
    log = Log()
    for chunk in chunks:
        log.feed(chunk)
    return log.lines()


def test_a_line_that_comes_in_pieces_is_one():
    assert lines(b"step", b" ", b"0", b"\n", b"step 1\nst") == ["step 0", "step 1", "st"]
    assert lines("größe\n".encode()[:3], "größe\n".encode()[3:]) == ["größe"]


def test_a_progress_bar_is_shown_as_it_was_drawn_last():
    bars = [b"\r 10%|# | 1/10 [00:01<00:09, 1.00it/s]", b"\r 20%|## | 2/10 [00:02<00:08, 1.00it/s]"]
    assert lines(b"begun\n", *bars) == ["begun", "20%|## | 2/10 [00:02<00:08, 1.00it/s]"]
    assert lines(*bars, b"\ndone\r\n") == ["20%|## | 2/10 [00:02<00:08, 1.00it/s]", "done"]


def test_so_many_lines_are_kept():
    written = [f"line {number}" for number in range(100)]
    assert lines("\n".join(written).encode()) == written[-KEPT_LINES:]
