"""The last lines of a rank's output, however they come, and what progress bars say."""

import pytest

from distrun.runner.observation.model.output import KEPT_LINES, Log, RankOutput, seconds_left


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (" 12%|#2   | 120/1000 [00:12<01:28, 10.0it/s]", 88.0),
        ("epoch 3: 100%|#####| 7/7 [1:00:00<00:00,  1.0s/it, loss=0.3]", 0.0),
        ("  5%|5 | 50/1000 [00:10<2:03:04, 1.2it/s]", 7384.0),
        ("120/1000 ━━━━━━━━━━━━━━━━━━━━ 1:28 100ms/step - loss: 0.3", 88.0),
        ("12/60 ━━━━ 6s 120ms/step - accuracy: 0.1", 6.0),
        ("1000/1000 ━━━━━━━━━━━━━━━━━━━━ 90s 90ms/step - loss: 0.3 - val_loss: 0.2", 0.0),
        ("loss 0.3 after 12/60 batches", None),
        ("  0%|   | 0/1000 [00:00<?, ?it/s]", None),
    ],
)
def test_time_left(line, left):
    assert seconds_left(line) == left


def test_the_last_line_survives_pieces_colours_and_carriage_returns():
    output = RankOutput()
    for piece in (b"hello\nwor", b"ld\n\n", b"\r 10%|# | 1/10 [00:01<00:09, 1it/s]", b"\r 20%|## | 2/10 [00:02<00:08"):
        output.feed(piece)
    assert output.last_line.startswith("20%|## | 2/10")
    output.feed(b", 1it/s]")
    assert (output.seconds_left, output.is_bar) == (8.0, True)
    output.feed(b"\n\x1b[31mdone\x1b[0m\n")
    assert (output.last_line, output.seconds_left, output.is_bar) == ("done", None, False)


def test_a_line_without_end_costs_no_memory():
    output = RankOutput()
    for _ in range(100):
        output.feed(b"x" * 65536)
    assert len(output._partial) <= 4096


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
