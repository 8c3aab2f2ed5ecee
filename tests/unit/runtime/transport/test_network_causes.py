"""A report of a stall says what the network between the ranks has to do with it."""

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


def causes(troubles=None, answering=()):
    return NetworkCauses(ControlPlane(troubles or {}, answering), "<{}>".format)


def test_troubles_are_told_and_sound_connections_are_not_then():
    assert causes({2: "it is bad"}, [3]).among({2, 3}, {3}) == ["it is bad"]


def test_sound_connections_with_all_that_have_answered_are_told():
    assert causes({}, [2, 3]).among({2, 3}, {2, 3}) == [
        "the connections with ranks 2, 3 are sound: the network between is not the cause"
    ]


def test_a_rank_that_does_not_answer_though_its_host_does_is_stopped_or_busy():
    (said,) = causes({}, [2]).among({2}, set())
    assert said.startswith("the host of <2> answers, so the network is hardly the cause")


def test_nothing_is_said_of_ranks_on_this_host():
    assert causes().among({1}, set()) == []


def test_a_rank_tells_what_is_wrong_with_its_connections_and_complains():
    asked = ControlPlane({0: "bad", 2: "worse"})
    assert NetworkCauses(asked, str).own() == "\nbad\nworse"
    assert NetworkCauses(asked, str).to_coordinator() == "bad"
    assert asked.complaints == 2
