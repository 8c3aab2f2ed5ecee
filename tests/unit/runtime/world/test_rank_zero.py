"""`on_rank_zero`: the thing itself, or a stand-in that takes all calls and has no value."""

import copy
import os

import numpy as np
import pytest

import distrun
from distrun.errors import NotInitializedError, UsageError
from distrun.runtime.world import world

USES = (bool, str, float, int, list, len, "{}".format, os.fspath, np.zeros, [1, 2].__getitem__)


@pytest.fixture
def stand_in(monkeypatch):
    """The object that rank 1 gets."""
    monkeypatch.setattr(world, "rank", lambda: 1)
    return distrun.on_rank_zero(os)


def test_rank_0_gets_the_thing_itself(monkeypatch):
    monkeypatch.setattr(world, "rank", lambda: 0)
    assert distrun.on_rank_zero(os) is os


def test_before_init_it_is_not_known():
    with pytest.raises(NotInitializedError):
        distrun.on_rank_zero(os)


def test_other_ranks_get_what_takes_all_calls(stand_in):
    with stand_in.start_run(name="first") as run:
        run.log({"loss": 1.0}).more.summary["best"] = 2
        run.name = "second"
    assert repr(run.name) == "<on rank 0 only>"
    assert repr(copy.copy(run)) == repr(run)


def test_an_error_inside_with_is_not_swallowed(stand_in):
    with pytest.raises(ZeroDivisionError), stand_in.start_run():
        raise ZeroDivisionError


@pytest.mark.parametrize("use", USES, ids=str)
def test_it_has_no_value(stand_in, use):
    with pytest.raises(UsageError, match=r"^rank 1 asks for a value that on_rank_zero gives to rank 0 only: ask for"):
        use(stand_in.config.lr)


def test_nor_is_it_compared_or_computed_with(stand_in):
    with pytest.raises(UsageError, match="on_rank_zero"):
        stand_in.name == "first"  # noqa: B015
    with pytest.raises(UsageError, match="on_rank_zero"):
        stand_in.config["lr"]
    with pytest.raises(TypeError):
        2 * stand_in.lr
