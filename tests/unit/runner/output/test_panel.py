"""The panel at the bottom of a terminal: what scrolls above it, and what becomes of progress bars."""

import os
import pty

import pytest

from distrun.runner.output.panel import Panel


@pytest.fixture
def panel():
    controller, terminal = pty.openpty()
    yield Panel(terminal)
    os.close(controller)
    os.close(terminal)


class Screen:
    """As much of a terminal as the panel asks for: text, line feeds, going up a line and clearing it."""

    def __init__(self):
        self.rows, self.row = [""], 0

    def take(self, data):
        for part in data.replace(b"\x1b", b"\0\x1b").split(b"\0"):
            if part.startswith((b"\x1b[?", b"\x1b[0m")):
                part = part[part.index(b"l" if b"l" in part[:9] else b"h" if b"h" in part[:9] else b"m") + 1 :]
            elif part.startswith(b"\x1b[2K"):
                self.rows[self.row], part = "", part[4:]
            elif part.startswith(b"\x1b[A"):
                self.row, part = self.row - 1, part[3:]
            lines = part.decode().replace("\r", "").split("\n")
            self.rows[self.row] += lines[0]
            for line in lines[1:]:
                self.row += 1
                self.rows[self.row : self.row + 1] = [line + "".join(self.rows[self.row : self.row + 1])]
        return [row for row in self.rows if row]


def test_lines_scroll_above_the_panel(panel):
    screen = Screen()
    panel.show(["one", "two"])
    assert screen.take(panel.around(b"")) == ["one", "two"]
    assert screen.take(panel.around(b"[0] hello\n")) == ["[0] hello", "one", "two"]
    panel.show(["three"])
    assert screen.take(panel.around(b"[1] x\n")) == ["[0] hello", "[1] x", "three"]
    panel.show([])
    assert screen.take(panel.around(b"")) == ["[0] hello", "[1] x"]


def test_the_bar_of_rank_0_is_drawn_in_place_and_its_end_is_printed(panel):
    panel.show(["panel"])
    screen = Screen()
    for piece in (b"\r", b" 10%|# | 1/10 [00:01<00:09, 1it/s]", b"\r", b" 20%|## | 2/10 [00:02<00:08, 1it/s]"):
        assert panel.whole((0, "stderr"), [piece]) == []
    assert screen.take(panel.around(b"")) == [" 20%|## | 2/10 [00:02<00:08, 1it/s]", "panel"]
    ended = panel.whole((0, "stderr"), [b"\r", b"100%|## | 10/10 [00:10<00:00, 1it/s]\n"])
    assert ended == [b"100%|## | 10/10 [00:10<00:00, 1it/s]\n"]
    assert screen.take(panel.around(b"")) == ["panel"]


def test_bars_of_other_ranks_are_left_out_but_nothing_else_is(panel):
    key = 3, "stderr"
    assert panel.whole(key, [b"\r", b" 10%|# | 1/10 [00:01<00:09, 1it/s]", b"\r"]) == []
    assert panel.whole(key, [b"100%|## | 10/10 [00:10<00:00, 1it/s]\n"]) == []
    assert panel.whole(key, [b"\r", b" 10%|# | 1/10 [00:01<00:09, 1it/s]", b"\r", b"Traceback:\n"]) == [b"Traceback:\n"]
    assert panel.whole(key, [b"a prompt> "]) == []
    assert panel.whole(key, [b"answered\n", b"\n"]) == [b"a prompt> answered\n", b"\n"]


def test_states_of_a_keras_bar_that_end_in_line_feeds_are_one_line(panel):
    bars = [b"1/3 \xe2\x94\x81 9s 1s/step - loss: 0.3\n", b"2/3 \xe2\x94\x81 5s 1s/step - loss: 0.2\n"]
    last = b"3/3 \xe2\x94\x81 3s 1s/step - loss: 0.1\n"
    for rank, printed in ((0, [last]), (1, [])):
        assert panel.whole((rank, "stdout"), bars) == []
        assert panel.whole((rank, "stdout"), [last]) == printed


def test_what_is_unfinished_at_the_end_is_not_lost(panel):
    panel.whole((1, "stdout"), [b"no line end"])
    panel.whole((2, "stderr"), [b" 10%|# | 1/10 [00:01<00:09, 1it/s]", b"\r"])
    panel.whole((0, "stderr"), [b" 10%|# | 1/10 [00:01<00:09, 1it/s]", b"\r"])
    assert dict(panel.unfinished()) == {
        (1, "stdout"): b"no line end",
        (0, "stderr"): b" 10%|# | 1/10 [00:01<00:09, 1it/s]",
    }
