"""Streams that are not shown, chosen by the place of ranks on their host."""

import pytest

from distrun.errors import UsageError
from distrun.runner.output.hidden import hidden_streams

LOCAL_RANKS = {0: 0, 1: 1, 2: 0, 3: 1}  # two hosts of two ranks


@pytest.mark.parametrize(
    ("redirect", "shown", "expected"),
    [
        (None, None, set()),
        ("0", None, set()),
        ("1", None, {(rank, "stdout") for rank in range(4)}),
        ("0:3,1:2", None, {(0, "stdout"), (0, "stderr"), (1, "stderr"), (2, "stdout"), (2, "stderr"), (3, "stderr")}),
        (None, "0", {(1, "stdout"), (1, "stderr"), (3, "stdout"), (3, "stderr")}),
        ("2", "1", {(0, "stdout"), (0, "stderr"), (1, "stderr"), (2, "stdout"), (2, "stderr"), (3, "stderr")}),
    ],
)
def test_streams_are_hidden_by_local_rank(redirect, shown, expected):
    assert hidden_streams(LOCAL_RANKS, redirect, shown) == expected


@pytest.mark.parametrize(("redirect", "shown"), [("4", None), ("0:5", None), ("all", None), (None, "0-1"), (None, "")])
def test_anything_else_is_refused(redirect, shown):
    with pytest.raises(UsageError, match=r"allowed are 1 .stdout.|give numbers"):
        hidden_streams(LOCAL_RANKS, redirect, shown)
