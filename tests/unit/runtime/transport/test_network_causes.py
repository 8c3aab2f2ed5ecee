"""A report of a stall says what the network between the ranks has to do with it."""

import pytest

from distrun.runtime.transport.network_causes import NetworkCauses


class ControlPlane:
    """The connections of rank 0: some in trouble, some answering."""

    def __init__(self, troubles, answering=()):
        self._troubles = troubles
        self._answering = answering
        self.complaints = 0

    def trouble_with(self, rank):
        return self._troubles.get(rank, "")

    def troubles(self):
        return list(self._troubles.values())

    def hears_from(self, rank):
        return rank in self._answering

    def complain(self):
        self.complaints += 1


@pytest.mark.parametrize(
    ("troubles", "answering", "missing", "answered", "said"),
    [
        ({2: "it is bad"}, [3], {2, 3}, {3}, ["it is bad"]),
        (
            {},
            [2, 3],
            {2, 3},
            {2, 3},
            ["the connections with ranks 2, 3 are sound: the network between is not the cause"],
        ),
        ({}, [2], {2}, set(), ["the host of <2> answers, so the network is hardly the cause"]),
        ({}, [], {1}, set(), []),
    ],
    ids=["trouble", "sound", "stopped or busy", "on this host"],
)
def test_among_the_missing_ranks(troubles, answering, missing, answered, said):
    found = NetworkCauses(ControlPlane(troubles, answering), "<{}>".format).among(missing, answered)
    assert [text.partition(": its process")[0] for text in found] == said


def test_a_rank_tells_what_is_wrong_with_its_connections_and_complains():
    asked = ControlPlane({0: "bad", 2: "worse"})
    assert NetworkCauses(asked, str).own() == "\nbad\nworse"
    assert NetworkCauses(asked, str).to_coordinator() == "bad"
    assert asked.complaints == 2
