"""The part of a report that says what more hosts would bring."""

from dataclasses import replace

import pytest

from distrun.runner.observation.prediction.profile import Gradients, JobProfile, StepSeconds
from distrun.runner.observation.profiling.profiler import Profiled
from distrun.runner.observation.report.scaling import scaling

SECONDS = StepSeconds(step=0.34, forward=0.1, backward=0.2, communication=0.04)
PROFILE = JobProfile(
    2, 2, 1, 100, SECONDS, 0.0, 0.0, "float32", tuple(Gradients(12.8e6, at, 12.8e6, 0.11) for at in (0.1, 0.2))
)


def test_twice_and_four_times_the_hosts_on_links_as_they_were():
    found = scaling(Profiled(PROFILE), None)
    assert [(scale.factor, scale.hosts, scale.ranks) for scale in found.scales] == [(1, 2, 2), (2, 4, 4), (4, 8, 8)]
    assert found.scales[0].efficiency == pytest.approx(0.3 / 0.34)
    assert found.scales[0].error == 0
    steps = [scale.step for scale in found.scales]
    assert steps == sorted(steps)
    assert all(scale.error > 0 for scale in found.scales[1:])
    assert (found.alone, found.step) == (pytest.approx(0.3), 0.34)
    assert "as fast as gradients were between the hosts of this job, 933 Mbit/s." in found.said


def test_of_one_host_the_link_is_assumed():
    found = scaling(Profiled(replace(PROFILE, hosts=1, ranks_per_host=2)), None)
    assert [(scale.hosts, scale.ranks) for scale in found.scales] == [(1, 2), (2, 4), (4, 8)]
    assert found.said.startswith("This job had one host: links of 10 Gbit/s between several are assumed.")


def test_a_step_on_one_rank_that_was_given_is_compared_with():
    plain, given = scaling(Profiled(PROFILE), None), scaling(Profiled(PROFILE), 0.15)
    for one, other in zip(plain.scales, given.scales, strict=True):
        assert other.efficiency == pytest.approx(one.efficiency / 2)


def test_without_a_profile_it_is_said_why():
    found = scaling(Profiled(None, "no rank has told of two steps"), None)
    assert not found.scales
    assert found.said == "How fast the job would be on more hosts is not known: no rank has told of two steps."
