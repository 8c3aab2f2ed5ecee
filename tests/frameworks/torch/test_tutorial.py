"""The tutorial's commands on this machine, typed in its order; tests/hosts has those on two machines."""

from __future__ import annotations

import pytest
from machines.reader import TUTORIAL, Reader, blocks, is_like

HERE = ("One process", "Two ranks", "Watch it")


@pytest.mark.gate
def test_what_the_tutorial_says_of_one_machine_happens(tmp_path):
    reader = Reader(tmp_path, {})
    try:
        reader.follow(blocks(TUTORIAL), HERE)
    finally:
        reader.close()
    assert (tmp_path / "tutorial" / "report.html").stat().st_size > 1000


@pytest.mark.gate
def test_lines_are_alike_if_only_results_differ_a_little_and_times():
    assert is_like("[0] epoch 5: 91.0% are right", "[0] epoch 5: 89.9% are right")
    assert not is_like("[0] epoch 5: 33.3% are right", "[0] epoch 5: 89.9% are right")
    assert not is_like("[0] epoch 6: 89.9% are right", "[0] epoch 5: 89.9% are right")
    assert is_like("a  2  0:05  x", "a 2 1:25 x")
    assert is_like("for 17 s: gone", "for 5 s: gone")
    assert not is_like("a  3  0:05  x", "a 2 1:25 x")
