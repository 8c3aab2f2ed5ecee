"""The steps before ranks meet: what is read, and what is said of it."""

import pytest

from distrun.contract.launch import LaunchContract
from distrun.errors import UsageError
from distrun.runtime.world.bootstrap import join as joining
from distrun.runtime.world.bootstrap.join import join

CONTRACT = LaunchContract("0" * 32, "1" * 64, 0, 1, 0, 1, 0, 1, "alpha", "127.0.0.1", 4711).to_environ()
SENTENCE = "DISTRUN_STALL_WARNNG is not a setting of distrun and changes nothing: did you mean DISTRUN_STALL_WARNING?"


@pytest.fixture
def warnings(monkeypatch):
    """The warnings that were logged."""
    told = []
    monkeypatch.setattr(joining.log, "warning", lambda text, *values: told.append(text % values))
    return told


def test_rank_0_tells_of_a_misspelt_setting_in_its_first_world_only(warnings):
    environ = {"DISTRUN_STALL_WARNNG": "5", "CUDA_VISIBLE_DEVICES": ""}
    for generation in (1, 2):
        assert join(environ, generation).topology.size == 1
    assert warnings == [SENTENCE]


def test_under_distrun_the_launcher_has_told_already(warnings):
    join({**CONTRACT, "DISTRUN_STALL_WARNNG": "5", "CUDA_VISIBLE_DEVICES": ""}, 1)
    assert warnings == []


def test_an_impossible_setting_ends_init():
    with pytest.raises(UsageError, match="DISTRUN_START_TIMEOUT='soon' is not a number"):
        join({"DISTRUN_START_TIMEOUT": "soon"}, 1)
