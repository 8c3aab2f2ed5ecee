"""Messages and receives find each other by group, tag and rank, in order."""

from __future__ import annotations

from hypothesis import given, strategies as st

from distrun.runtime.collectives.point_to_point.frames import MESSAGE, OFFER, Frame
from distrun.runtime.collectives.point_to_point.matching import Arrival, Matching
from distrun.runtime.collectives.point_to_point.transfer import Receive, group_number


def receive(*sources: int, tag: int = 0, group: str = "g") -> Receive:
    return Receive(memoryview(bytearray(4)), sources, group, tag, "uint8")


def message(source: int, tag: int = 0, group: str = "g", body: bytes | None = b"1234") -> Arrival:
    kind = OFFER if body is None else MESSAGE
    return Arrival(source, Frame(kind, group_number(group), tag, 0, 4, "uint8"), body, None)


def test_receives_are_served_in_the_order_in_which_they_were_posted():
    matching = Matching()
    first, second = receive(1), receive(1, 2)
    assert matching.post(first) is matching.post(second) is None
    assert matching.arrive(message(2)) is second
    assert matching.arrive(message(1)) is first
    assert not list(matching.posted())


def test_tags_and_groups_are_apart():
    matching = Matching()
    early, late, foreign = message(1, tag=5), message(1, tag=6), message(1, tag=5, group="other")
    for each in (foreign, early, late):
        assert matching.arrive(each) is None
    assert matching.post(receive(1, tag=6)) is late
    assert matching.post(receive(1, tag=5)) is early
    assert matching.post(receive(1, tag=5)) is None
    assert matching.post(receive(1, tag=5, group="other")) is foreign


def test_a_receive_that_is_taken_back_takes_nothing():
    matching = Matching()
    given_up, other = receive(1), receive(1)
    matching.post(given_up)
    matching.post(other)
    assert matching.withdraw(given_up)
    assert not matching.withdraw(given_up)
    assert list(matching.posted()) == [other]
    assert matching.arrive(message(1)) is other


def test_what_a_rank_that_is_gone_has_only_offered_is_forgotten():
    matching = Matching()
    there, elsewhere = message(1), message(2, body=None)
    for each in (message(1, body=None), there, elsewhere):
        matching.arrive(each)
    matching.forget_offers(1)
    assert matching.post(receive(1, 2)) is there
    assert matching.post(receive(1, 2)) is elsewhere
    assert matching.post(receive(1, 2)) is None


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 3), st.integers(0, 1)),
        st.tuples(st.just("post"), st.sets(st.integers(1, 3), min_size=1), st.integers(0, 1)),
    ),
    max_size=60,
)


@given(_STEPS)
def test_matching_is_what_a_search_through_everything_finds(steps):
    matching = Matching()
    posted: list[Receive] = []
    arrived: list[Arrival] = []
    for kind, who, tag in steps:
        if kind == "post":
            wanted = receive(*who, tag=tag)
            found = next((m for m in arrived if m.frame.tag == tag and m.source in who), None)
            assert matching.post(wanted) is found
            arrived.remove(found) if found else posted.append(wanted)
        else:
            came = message(who, tag)
            taker = next((r for r in posted if r.tag == tag and who in r.sources), None)
            assert matching.arrive(came) is taker
            posted.remove(taker) if taker else arrived.append(came)
    assert sorted(map(id, matching.posted())) == sorted(map(id, posted))
