"""How ends of ranks are told apart and put into words."""

import pytest
from hypothesis import given, strategies as st

from distrun.runner.protocol.exits import RankExit, signal_name


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        (RankExit(0), 0, "exited with code 0"),
        (RankExit(42), 42, "exited with code 42"),
        (RankExit(1, True), 1, "exited with code 1 (the kernel's OOM killer had ended a process of the job)"),
        (RankExit(-9), 137, "was killed by SIGKILL"),
        (RankExit(-9, True), 137, "was killed by SIGKILL (out of memory: the kernel's OOM killer ended it)"),
    ],
)
def test_an_end_has_a_status_and_words(end, status, words):
    assert (end.status, str(end)) == (status, words)


def test_of_ends_noticed_together_a_signal_is_the_likeliest_cause_and_code_1_the_least_likely():
    ends = [RankExit(0), RankExit(1), RankExit(42), RankExit(-11)]
    assert sorted(ends, key=lambda end: end.root_cause_order) == [RankExit(-11), RankExit(42), RankExit(1), RankExit(0)]


@given(st.integers(-64, 255), st.booleans())
def test_an_end_survives_the_journey(returncode, out_of_memory):
    end = RankExit(returncode, out_of_memory)
    assert RankExit.decode(end.encode()) == end


def test_a_signal_without_a_name_is_a_number():
    assert signal_name(9) == "SIGKILL"
    assert signal_name(250) == "signal 250"
