"""The steps before ranks meet: what is read, and what is said of it."""

from __future__ import annotations

import pytest

from distrun.errors import UsageError
from distrun.runtime import bootstrap
from distrun.runtime.bootstrap import Meeting, _of_meeting, join
from distrun.runtime.contract import LaunchContract
from distrun.runtime.rendezvous.protocol import RendezvousEndpoint

CONTRACT = LaunchContract("0" * 32, "1" * 64, 0, 1, 0, 1, 0, 1, "alpha", "127.0.0.1", 4711).to_environ()
SENTENCE = "DISTRUN_STALL_WARNNG is not a setting of distrun and changes nothing: did you mean DISTRUN_STALL_WARNING?"


@pytest.fixture
def warnings(monkeypatch):
    """The warnings that were logged."""
    told = []
    monkeypatch.setattr(bootstrap.log, "warning", lambda text, *values: told.append(text % values))
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


def test_keys_hold_for_one_meeting():
    endpoint = RendezvousEndpoint((("127.0.0.1", 1),), b"key", lambda: (b"sealed", b"made"), lambda greeting: b"made")
    first, second = _of_meeting(endpoint, Meeting(1, 1)), _of_meeting(endpoint, Meeting(1, 2))
    later = _of_meeting(endpoint, Meeting(2, 1))
    assert len({endpoint.key, first.key, second.key, later.key}) == 4
    assert first.greeting is not None
    assert first.opener is not None
    assert first.greeting() == (b"sealed", first.opener(b"sealed"))
    assert second.opener is not None
    assert second.opener(b"sealed") != first.opener(b"sealed")
