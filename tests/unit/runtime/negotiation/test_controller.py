"""Histories of events, and what the controller decides: no ranks, no clock."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.decisions import AllJoined, Decision, Define, Execute, Fail
from distrun.runtime.negotiation.joining import stand_in
from distrun.runtime.negotiation.matching.matching import Matching
from distrun.runtime.operations.reduction import Max, Sum
from distrun.runtime.operations.request import DISSOLVE_PROCESS_SET, FORM_PROCESS_SET, Request


def request(name: str | None = "a", **changes: object) -> Request:
    return Request("allreduce", name, "float32", ((3,),))._replace(**changes)


A, B, C = request("a"), request("b"), request("c")


def controller(size: int = 2, **options: int) -> Controller:
    return Controller({0: range(size)}, **options)


def submit(made: Controller, known: Request, *ranks: int, now: float = 0.0) -> None:
    for rank in ranks:
        made.submit(rank, known, "", now)


def submit_ids(made: Controller, cache_ids: list[int], *ranks: int, now: float = 0.0) -> None:
    for rank in ranks:
        made.submit_ids(rank, cache_ids, now)


def taught(size: int, *requests: Request) -> Controller:
    """A controller that knows these requests by the cache ids 0, 1, ..."""
    made = controller(size)
    for known in requests:
        for rank in range(size):
            made.submit(rank, known, f"train.py:{rank}", 0.0)
    assert made.decisions() == [Define(cache_id, known) for cache_id, known in enumerate(requests)]
    return made


def answered(made: Controller, *sites: str) -> list[Decision]:
    """The decisions once the ranks that were asked where they are have answered; without a site, not knowing it."""
    assert made.questions
    answers = [*sites, *[""] * len(made.questions)]
    for (rank, key), site in zip(made.questions, answers, strict=False):
        made.site_told(rank, key, site)
    made.questions.clear()
    return made.decisions()


def test_an_operation_is_ready_when_the_last_rank_has_submitted_it():
    made = controller(3)
    submit(made, A, 2, 0)
    assert made.decisions() == []
    made.submit(1, A, "", 0.0)
    assert made.decisions() == [Define(0, A)]
    assert made.decisions() == []


def test_operations_run_in_the_order_in_which_they_became_ready_whatever_order_each_rank_used():
    made = controller()
    for rank, order in enumerate([(A, B, C), (C, A, B)]):
        for known in order:
            made.submit(rank, known, "", 0.0)
    assert made.decisions() == [Define(0, C), Define(1, A), Define(2, B)]


def test_known_operations_are_cache_ids_and_those_that_become_ready_together_make_one_decision():
    made = taught(2, A, B, C)
    made.submit_ids(0, [0, 1, 2], 0.0)
    assert made.decisions() == []
    made.submit_ids(1, [2, 0], 0.0)
    assert made.decisions() == [Execute([2, 0])]
    made.submit_ids(1, [1], 0.0)
    assert made.decisions() == [Execute([1])]


def test_requests_beyond_the_capacity_are_executed_without_a_cache_id():
    made = controller(2, capacity=1)
    for _ in range(2):
        for known in (A, B):
            submit(made, known, 0, 1)
    assert made.decisions() == [Define(0, A), Define(-1, B), Execute([0]), Define(-1, B)]


def test_unnamed_operations_keep_their_order_among_streams_of_cache_ids():
    unnamed, other = request(None), request(None, op=Max)
    made = taught(2, A, unnamed, other)
    made.submit_ids(0, [1, 0, 2, 1], 0.0)
    made.submit_ids(1, [1, 0], 0.0)
    assert made.decisions() == [Execute([1, 0])]
    made.submit_ids(1, [2, 1], 0.0)
    assert made.decisions() == [Execute([2, 1])]
    made.submit_ids(0, [1], 0.0)
    made.submit_ids(1, [2], 0.0)
    (failed,) = answered(made)
    # 1 and 2 when they were taught, then 1, 2, 1: this is the sixth, number 5.
    assert failed.text.startswith("unnamed allreduce (number 5): the ranks disagree about op: ")


# Disagreement ---------------------------------------------------------------------------------------------------------

DISAGREEMENTS = [
    ({"dtype": "float64"}, "dtype", "dtype float32", "dtype float64"),
    ({"shapes": ((3, 1),)}, "shapes", "shapes [3]", "shapes [3, 1]"),
    ({"shapes": ((),)}, "shapes", "shapes [3]", "shapes []"),
    ({"op": Sum}, "op", "op average", "op sum"),
    ({"root": 2}, "root", "root -1", "root 2"),
    ({"prescale": 0.5}, "prescale", "prescale 1.0", "prescale 0.5"),
    ({"postscale": 2.0}, "postscale", "postscale 1.0", "postscale 2.0"),
    ({"device": "cuda"}, "device", "device cpu", "device cuda"),
    (
        {"kind": "allgather", "shapes": ((-1,),)},
        *("kind, shapes", "kind allreduce, shapes [3]", "kind allgather, shapes [*]"),
    ),
]


@pytest.mark.parametrize(("changes", "fields", "most", "odd"), DISAGREEMENTS)
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)])
def test_a_disagreement_names_the_operation_the_fields_the_ranks_their_values_and_where_they_are(
    changes, fields, most, odd, order
):
    made, other = controller(3), A._replace(**changes)
    for rank in order:
        made.submit(rank, other if rank == 1 else A, f"t.py:{rank}", 0.0)
    (failed,) = made.decisions()
    assert (failed.key, failed.ranks, failed.is_stall) == ((0, "a"), (0, 1, 2), False)
    start = f" 'a': the ranks disagree about {fields}: "
    assert failed.text.startswith((A.kind + start, other.kind + start))
    assert f"ranks 0, 2 asked for {most} at t.py:0" in failed.text
    assert f"rank 1 asked for {odd} at t.py:1" in failed.text


def test_a_disagreement_keeps_its_place_between_other_decisions():
    made = taught(2, A, B, C)
    made.submit_ids(0, [0, 1, 2], 0.0)
    made.submit_ids(1, [0], 0.0)
    made.submit(1, B._replace(op=Max), "", 0.0)
    made.submit_ids(1, [2], 0.0)
    assert made.decisions() == [Execute([0])]
    failed, after = answered(made)
    assert after == Execute([2])
    assert isinstance(failed, Fail)


@pytest.mark.parametrize(("site", "shown"), [("here.py:7", "here.py:7"), ("", "train.py:0, when first seen")])
def test_a_rank_that_submitted_a_cache_id_is_asked_where_it_is(site, shown):
    made = taught(2, A)
    made.submit_ids(0, [0], 0.0)
    made.submit(1, A._replace(op=Max), "elsewhere.py:9", 0.0)
    assert made.questions == [(0, (0, "a"))]
    (failed,) = answered(made, site)
    assert f"rank 0 asked for op average at {shown}" in failed.text
    assert "rank 1 asked for op max at elsewhere.py:9" in failed.text


def test_ranks_that_know_two_requests_under_one_name_by_cache_id_disagree_each_at_its_own_place():
    made = taught(2, A)
    other = request("a", shapes=((4,),))
    for rank in range(2):
        made.submit(rank, other, f"eval.py:{rank}", 0.0)
    assert made.decisions() == [Define(1, other)]
    made.submit_ids(0, [0], 0.0)
    made.submit_ids(1, [1], 0.0)
    (failed,) = answered(made)
    assert "rank 0 asked for shapes [3] at train.py:0" in failed.text
    assert "rank 1 asked for shapes [4] at eval.py:1" in failed.text


def test_of_a_large_group_the_tensor_that_differs_is_shown():
    group = request("group", shapes=((1,), (2,), (3,)))
    made = controller()
    made.submit(0, group, "", 0.0)
    made.submit(1, group._replace(shapes=((1,), (2,), (4,))), "", 0.0)
    (failed,) = made.decisions()
    assert failed.text == (
        "allreduce 'group': the ranks disagree about shapes (of tensor 2 of 3): "
        "rank 0 asked for shapes [3]; rank 1 asked for shapes [4]"
    )


# Stalls ---------------------------------------------------------------------------------------------------------------


def test_process_sets_where_nothing_waits_are_not_looked_at(monkeypatch):
    looked, oldest = [], Matching.oldest
    monkeypatch.setattr(Matching, "oldest", property(lambda self: looked.append(self) or oldest.fget(self)))
    made = Controller(dict.fromkeys(range(100), (0, 1)))
    for number in range(100):
        submit(made, request(process_set=number), 0, 1, now=1.0)
    assert made.oldest is None
    assert len(looked) == 100
    looked.clear()
    submit(made, request(process_set=7), 0, now=2.0)
    submit(made, request(process_set=9), 0, now=3.0)
    assert (made.oldest, len(looked)) == (2.0, 2)
    made.remove_process_set(7)
    assert made.oldest == 3.0
    submit(made, request(process_set=9), 1, now=4.0)
    assert made.oldest is made.oldest is None
    assert len(looked) == 4


def test_nothing_waits_at_first_and_the_oldest_is_told_while_something_does():
    made = taught(2, A, B)
    assert made.oldest is None
    made.submit(0, C, "", 5.0)
    made.submit_ids(0, [1], 7.0)
    assert made.oldest == 5.0
    made.submit(1, C, "", 8.0)
    assert made.oldest == 7.0
    made.submit_ids(1, [1], 9.0)
    assert made.oldest is None


def test_stalls_tell_who_submitted_what_where_and_who_did_not():
    made = controller(4)
    made.submit(2, A, "train.py:12 in main", 1.0)
    made.submit(1, A, "train.py:15 in main", 2.0)
    made.submit(1, B, "", 4.0)
    assert made.stalls(3.5, 3.0) == []
    (stall,) = made.stalls(5.0, 3.0)
    assert stall.title == "allreduce 'a'"
    assert (stall.present, stall.missing, stall.waited) == ((1, 2), (0, 3), 4.0)
    assert stall.site == "train.py:15 in main"
    assert [stall.title for stall in made.stalls(9.0, 3.0)] == ["allreduce 'a'", "allreduce 'b'"]


def test_operations_known_by_cache_id_stall_too():
    made = taught(3, A, B)
    made.submit_ids(0, [0, 1], 10.0)
    made.submit_ids(2, [0], 11.0)
    first, second = made.stalls(20.0, 5.0)
    assert (first.title, first.present, first.missing) == ("allreduce 'a'", (0, 2), (1,))
    assert (second.title, second.present, second.missing) == ("allreduce 'b'", (0,), (1, 2))
    made.submit_ids(1, [1, 0], 21.0)
    assert made.decisions() == [Execute([0])]  # b still lacks rank 2
    made.submit_ids(2, [1], 22.0)
    assert made.decisions() == [Execute([1])]


def test_a_rank_that_says_how_long_it_has_waited_moves_the_beginning_back():
    made = taught(2, A)
    made.submit_ids(1, [0], 10.0)
    made.backdate(1, 4.0)
    assert made.oldest == 4.0
    made.backdate(1, 6.0)
    assert made.oldest == 4.0
    made.backdate(0, 1.0)  # it has submitted nothing that waits
    assert made.oldest == 4.0


def test_giving_up_fails_those_that_wait_and_tells_the_late_comer_who_is_awaited_no_longer():
    made = controller(3)
    submit(made, A, 0, 2)
    made.submit(0, B, "", 8.0)
    made.give_up(10.0, 10.0, {"allreduce 'a'": "too late"})
    assert made.decisions() == [Fail((0, "a"), "too late", (0, 2), is_stall=True)]
    made.submit(1, A, "", 11.0)
    assert made.decisions() == [Fail((0, "a"), "too late", (1,), is_stall=True)]
    assert [stall.title for stall in made.stalls(100.0, 0.0)] == ["allreduce 'b'"]
    submit(made, A, 0, 1, 2, now=12.0)
    assert made.decisions() == [Define(0, A)]


def test_what_is_tried_again_before_the_late_comer_came_is_a_new_operation():
    made = taught(3, A)
    submit_ids(made, [0], 0, 2)
    made.give_up(1.0, 1.0, {})
    (failed,) = made.decisions()
    assert failed.text == "allreduce 'a': not all ranks submitted it in time"
    made.submit_ids(2, [0], 1.5)  # again
    assert made.oldest == 1.5
    made.submit_ids(1, [0], 2.0)  # late
    (failed,) = made.decisions()
    assert failed.ranks == (1,)
    made.submit_ids(1, [0], 2.0)  # again
    made.submit_ids(0, [0], 2.0)  # again
    assert made.decisions() == [Execute([0])]
    assert made.oldest is None


def test_one_operation_is_given_up_alone_and_only_while_ranks_are_missing():
    made = taught(2, A, B)
    made.submit_ids(0, [0, 1], 0.0)
    for key in ((0, "unknown"), (7, "a"), (0, "a")):
        made.give_up_one(key, "too late")
    assert made.decisions() == [Fail((0, "a"), "too late", (0,), is_stall=True)]
    made.submit_ids(1, [0, 1], 1.0)
    assert made.decisions() == [Fail((0, "a"), "too late", (1,), is_stall=True), Execute([1])]
    made.give_up_one((0, "b"), "too late")
    assert made.decisions() == []


def test_an_unnamed_operation_that_was_given_up_does_not_shift_the_others():
    unnamed, other = request(None), request(None, op=Max)
    made = controller()
    made.submit(0, unnamed, "", 0.0)
    made.give_up(1.0, 1.0, {})
    (failed,) = made.decisions()
    assert failed.key == (0, 0)
    made.submit(0, other, "", 2.0)
    made.submit(1, unnamed, "", 3.0)
    (failed,) = made.decisions()
    assert (failed.key, failed.ranks) == ((0, 0), (1,))
    made.submit(1, other, "", 4.0)
    assert made.decisions() == [Define(0, other)]


# Any interleaving -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Rank:
    """A rank as its engine behaves: submits its script's operations, learns cache ids, executes decisions."""

    rank: int
    script: list[Request]
    cache_ids: dict[Request, int] = dataclasses.field(default_factory=dict)
    pending: Counter[Request] = dataclasses.field(default_factory=Counter)
    log: list[tuple[str, Request]] = dataclasses.field(default_factory=list)
    heard: int = 0

    def next_requests(self, limit: int) -> list[Request]:
        """Return the requests that the rank can submit now; a name may be in flight only once."""
        found: list[Request] = []
        names = {request.name for request in self.pending if self.pending[request]}
        while self.script and len(found) < limit:
            name = self.script[0].name
            if name is not None and name in names:
                break
            names.add(name)
            found.append(self.script.pop(0))
        return found

    def act(self, decision: Define | Execute | Fail, requests: dict[int, Request]) -> None:
        if isinstance(decision, Define):
            if decision.cache_id >= 0:
                self.cache_ids[decision.request] = decision.cache_id
                requests[decision.cache_id] = decision.request
            self._done("run", decision.request)
        elif isinstance(decision, Execute):
            for cache_id in decision.cache_ids:
                self._done("run", requests[cache_id])
        else:
            assert self.rank in decision.ranks
            mine = [request for request in self.pending if request.name == decision.key[1] and self.pending[request]]
            self._done("fail", mine[0])

    def _done(self, how: str, request: Request) -> None:
        assert self.pending[request] > 0, f"rank {self.rank} has not submitted {request}"
        self.pending[request] -= 1
        self.log.append((how, request))


NAMES = ["a", "b", "c", "d"]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[list[Request]], random.Random, int]:
    """The ranks' scripts: the same operations, the named ones anywhere, the unnamed ones in one order."""
    size = draw(st.integers(1, 4))
    rounds = draw(st.lists(st.lists(st.sampled_from(NAMES), unique=True), min_size=1, max_size=4))
    unnamed = [request(None, shapes=((extent,),)) for extent in draw(st.lists(st.integers(1, 2), max_size=6))]
    disagreement, odd_round = draw(st.sets(st.sampled_from(NAMES), max_size=1)), draw(st.integers(0, 3))
    generator = random.Random(draw(st.integers(0, 2**32 - 1)))  # each number of `st.randoms` is drawn by hypothesis
    scripts = []
    for rank in range(size):
        script: list[Request] = []
        for number, names in enumerate(rounds):
            operations = [request(name, shapes=((1 + number % 2,),)) for name in generator.sample(names, len(names))]
            odd = rank == size - 1 and size > 1 and number == odd_round
            script += [op._replace(dtype="int8") if odd and op.name in disagreement else op for op in operations]
        for operation in reversed(unnamed):
            script.insert(generator.randrange(len(script) + 1), operation)
        positions = [index for index, operation in enumerate(script) if operation.name is None]
        for index, operation in zip(positions, unnamed, strict=True):
            script[index] = operation
        scripts.append(script)
    return scripts, generator, draw(st.sampled_from([0, 1, 3, 1000]))


@given(jobs())
def test_any_interleaving_decides_each_operation_exactly_once_and_in_one_order(job):
    scripts, generator, capacity = job
    submitted = [Counter(script) for script in scripts]
    made = Controller({0: range(len(scripts))}, capacity)
    ranks = [Rank(rank, list(script)) for rank, script in enumerate(scripts)]
    told: list[Define | Execute | Fail] = []  # the decisions, as the coordinator sends them to everybody
    requests: dict[int, Request] = {}
    now = 0.0
    while any(rank.script or sum(rank.pending.values()) for rank in ranks):
        now += 1.0
        rank = generator.choice(ranks)
        if generator.random() < 0.5 and rank.heard < len(told):
            rank.act(told[rank.heard], requests)
            rank.heard += 1
            continue
        batch: list[int] = []
        for operation in rank.next_requests(generator.randrange(1, 6)):
            rank.pending[operation] += 1
            cache_id = rank.cache_ids.get(operation)
            # A rank may also send the full request of an operation that has a cache id.
            if cache_id is not None and generator.random() < 0.9:
                batch.append(cache_id)
                continue
            if batch:
                made.submit_ids(rank.rank, batch, now)
                batch = []
            made.submit(rank.rank, operation, "", now)
        if batch:
            made.submit_ids(rank.rank, batch, now)
        told += answered(made) if made.questions else made.decisions()
        assert now < 100_000, "nothing more is decided, and not all is done"
    logs = [rank.log for rank in ranks]
    assert all(
        [(how, operation.name) for how, operation in log] == [(how, op.name) for how, op in logs[0]] for log in logs
    )
    for log, own in zip(logs, submitted, strict=True):
        assert Counter(operation for _, operation in log) == own
    odd = {operation.name for operation in submitted[-1] if operation.dtype == "int8"}
    for how, operation in logs[-1]:
        assert (how == "fail") == (operation.dtype == "int8")
    assert {operation.name for how, operation in logs[0] if how == "fail"} == odd
    assert made.oldest is None


# Joining --------------------------------------------------------------------------------------------------------------

JOIN = Request("join", "join()", "uint8", ())


def test_ranks_that_have_joined_are_waited_for_no_more_and_the_others_are_told_how_many_take_part():
    made = taught(3, A, B)
    submit_ids(made, [0], 0, 1)
    made.submit(2, JOIN, "", 0.0)
    assert made.decisions() == [Execute([0], taking_part=2)]
    made.submit(0, JOIN, "", 0.0)
    made.submit_ids(1, [1, 0], 0.0)
    assert made.decisions() == [Execute([1, 0], taking_part=1)]
    made.submit(1, C, "", 0.0)
    assert made.decisions() == [Define(2, C, taking_part=1)]
    made.submit(1, JOIN, "", 0.0)
    assert made.decisions() == [AllJoined(0, last=1, unnamed=0)]
    submit_ids(made, [0], 0, 1, 2)
    assert made.decisions() == [Execute([0])]


def test_what_a_rank_has_submitted_before_it_joined_is_its_own():
    made = taught(2, A, B)
    made.submit_ids(0, [0], 0.0)
    made.submit(0, JOIN, "", 0.0)
    made.submit_ids(1, [0, 1], 0.0)
    assert made.decisions() == [Execute([0]), Execute([1], taking_part=1)]


def test_unnamed_operations_go_on_at_the_same_place_when_all_have_joined():
    unnamed, other = request(None), request(None, op=Max)
    made = taught(2, unnamed, other)
    made.submit(1, JOIN, "", 0.0)
    made.submit_ids(0, [0, 1, 0], 0.0)
    assert made.decisions() == [Execute([0, 1, 0], taking_part=1)]
    made.submit(0, JOIN, "", 0.0)
    assert made.decisions() == [AllJoined(0, last=0, unnamed=5)]
    submit_ids(made, [1], 0, 1)
    assert made.decisions() == [Execute([1])]


def test_a_process_set_is_joined_by_itself():
    made = Controller({0: range(3), 1: [1, 2]})
    inner = request("a", process_set=1)
    made.submit(1, JOIN._replace(process_set=1), "", 0.0)
    made.submit(2, inner, "", 0.0)
    submit(made, A, 0, 1, 2)
    assert made.decisions() == [Define(0, inner, taking_part=1), Define(1, A)]
    made.submit(2, JOIN._replace(process_set=1), "", 0.0)
    assert made.decisions() == [AllJoined(1, last=2, unnamed=0)]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": "alltoall", "shapes": ((-1, 3),)}, "rank 1 has joined, and the rows for it would be lost"),
        ({"kind": "broadcast", "root": 1}, "its root, rank 1, has joined and has nothing to send"),
        ({"op": Max, "prescale": 0.5}, "rank 1 has joined, and op=max with a prescale_factor has no neutral element"),
    ],
)
def test_operations_that_have_no_meaning_without_a_rank_fail_with_a_sentence(changes, text):
    made = controller(3)
    made.submit(1, JOIN, "", 0.0)
    submit(made, A._replace(**changes), 0, 2)
    (failed,) = made.decisions()
    assert text in failed.text
    assert failed.ranks == (0, 2)


def test_ranks_that_have_joined_count_with_zeros_in_horovods_mode(monkeypatch):
    monkeypatch.setenv("DISTRUN_HOROVOD", "1")
    made = controller(3)
    made.submit(1, JOIN, "", 0.0)
    scaled = A._replace(op=Max, prescale=0.5)
    submit(made, scaled, 0, 2)
    assert made.decisions() == [Define(0, scaled, taking_part=3)]
    (elements,) = stand_in(scaled).inputs
    assert not elements.any()


def test_a_rank_that_joins_is_not_told_of_what_was_given_up_before():
    made = controller()
    made.submit(0, A, "", 0.0)
    made.give_up(9.0, 5.0, {})
    submit(made, JOIN, 1, 0, now=9.0)
    made.decisions()
    submit(made, A, 0, 1, now=10.0)
    assert made.decisions() == [Define(0, A)]


# Process sets ---------------------------------------------------------------------------------------------------------


def test_process_sets_come_and_go_and_each_keeps_its_own_order_of_streams():
    made = taught(3, A)
    inner = request("a", process_set=1)
    made.add_process_set(1, [0, 2])
    submit(made, inner, 0, 2)
    assert made.decisions() == [Define(1, inner)]
    made.submit_ids(0, [1, 0, 1], 0.0)
    made.submit_ids(2, [0, 1, 1], 0.0)
    made.submit_ids(1, [0], 0.0)
    assert made.decisions() == [Execute([1, 1], process_set=1), Execute([0])]
    assert made.members(1) == (0, 2)
    made.remove_process_set(1)
    submit_ids(made, [0], 0, 1, 2)
    assert made.decisions() == [Execute([0])]


# Sets that their own ranks form ---------------------------------------------------------------------------------------


def form(ranks: tuple[int, ...], name: str = "s") -> Request:
    return Request(FORM_PROCESS_SET, name, "int64", (ranks,))


def test_a_set_is_formed_when_its_own_ranks_are_there():
    made = controller(4)
    made.submit(3, form((1, 3)), "train.py:3", 0.0)
    made.submit(0, A, "", 0.0)
    assert made.decisions() == []
    made.submit(1, form((1, 3)), "train.py:1", 0.0)
    assert made.decisions() == [Define(-1, form((1, 3)), 2)]


def test_sets_of_equal_ranks_are_formed_beside_each_other():
    made = controller(2)
    for rank, name in [(0, "s"), (1, "t"), (0, "t"), (1, "s")]:
        made.submit(rank, form((0, 1), name), "", 0.0)
    assert made.decisions() == [Define(-1, form((0, 1), "t"), 2), Define(-1, form((0, 1), "s"), 2)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_ranks_that_name_different_ranks_are_told_at_once(order):
    made, said = controller(3), [form((0, 1, 2)), form((0, 1))]
    for rank in order:
        made.submit(rank, said[rank], f"train.py:{rank}", 0.0)
    (fail,) = made.decisions()
    assert (fail.key, fail.ranks, fail.is_stall) == ((0, "s"), (0, 1), False)
    for words in ["the ranks disagree about ranks", "[0, 1, 2] at train.py:0", "[0, 1] at train.py:1"]:
        assert words in fail.text
    if order == (0, 1):  # rank 2 was waited for
        made.submit(2, form((0, 1, 2)), "", 0.0)
        assert made.decisions() == [dataclasses.replace(fail, ranks=(2,))]


@pytest.mark.parametrize(
    "give_up", [lambda made: made.give_up(8.0, 1.0, {}), lambda made: made.give_up_one((0, "s"), "too late")]
)
def test_a_set_that_is_not_formed_in_time_is_reported_and_given_up(give_up):
    made = controller(3)
    made.submit(1, form((1, 2)), "train.py:1", 5.0)
    (stall,) = made.stalls(8.0, 1.0)
    assert (stall.title, stall.present, stall.missing, stall.waited) == ("form_process_set 's'", (1,), (2,), 3.0)
    assert made.oldest == 5.0
    give_up(made)
    (fail,) = made.decisions()
    assert fail.ranks == (1,)
    assert fail.is_stall
    made.submit(2, form((1, 2)), "", 9.0)
    assert made.decisions() == [dataclasses.replace(fail, ranks=(2,))]
    assert made.oldest is None


def test_what_dissolved_sets_hold_is_freed_when_the_next_is_formed():
    made = controller(2)
    made.add_process_set(5, (0, 1))
    dissolution = Request(DISSOLVE_PROCESS_SET, "5", "int64", ((5,),))
    made.submit(0, dissolution, "", 0.0)
    made.submit(1, form((1,), "before"), "", 0.0)
    assert made.decisions() == [Define(-1, form((1,), "before"), 1)]
    made.submit(1, dissolution, "", 0.0)
    assert made.decisions() == []
    assert made.oldest is None
    made.submit(1, form((1,), "after"), "", 0.0)
    assert made.decisions() == [Define(-1, dissolution, 1), Define(-1, form((1,), "after"), 1)]
