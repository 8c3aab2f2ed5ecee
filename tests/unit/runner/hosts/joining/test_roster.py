"""The roster says who may join, who is refused with which sentence, and who is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distrun.runner.hosts.joining.messages import Member
from distrun.runner.hosts.joining.roster import Roster

OWN = Member(0, 3, "a", 1, "/")
OTHER = Member(1, 3, "b", 2, "/")


def test_the_launchers_host_is_there_and_the_others_are_missed_until_they_join():
    roster = Roster(OWN)
    assert roster.describe_missing() == "1 of 3 hosts has joined (0 a), not 1 and 2"
    roster.join(OTHER)
    assert (roster.missing, roster.ranks) == ([2], 3)
    assert roster.describe_missing() == "2 of 3 hosts have joined (0 a, 1 b), not 2"
    roster.leave(1)
    assert roster.missing == [1, 2]


def test_many_missing_hosts_are_not_all_listed():
    assert Roster(replace(OWN, hosts=100)).describe_missing().endswith("not 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hosts": 2}, "host 1 (b) was told that there are 2 hosts, and host 0 that there are 3"),
        ({"index": 3}, "b calls as host 3, which does not exist: allowed are 1 to 2"),
        ({"index": 0}, "b calls as host 0, which is the launcher's own: allowed are 1 to 2"),
        ({"ranks": 0}, "b takes 0 ranks: allowed are 1 and more"),
        ({"distrun": "0.0.1"}, "b cannot be used: distrun 0.0.1 is installed there and "),
    ],
)
def test_who_does_not_fit_is_refused_with_what_is_allowed(changes, reason):
    assert Roster(OWN).refusal(replace(OTHER, **changes)).startswith(reason)
    assert Roster(OWN).refusal(OTHER) == ""


def test_a_second_one_with_an_index_waits_until_the_first_has_gone():
    roster = Roster(OWN)
    roster.join(OTHER)
    second = replace(OTHER, name="b-again")
    assert roster.occupant(second) == "host 1 has joined already (b), and b-again calls as the same"
    roster.leave(1)
    assert roster.occupant(second) == ""


@pytest.mark.parametrize(("is_elastic", "reason"), [(True, ""), (False, "the job has begun without b, and it is not")])
def test_only_an_elastic_job_takes_hosts_once_it_has_begun(is_elastic, reason):
    roster = Roster(OWN, is_elastic)
    roster.has_begun = True
    assert roster.refusal(OTHER).startswith(reason)
    assert bool(roster.refusal(OTHER)) == bool(reason)
