"""The negotiation of many hosts: it decides what it decides without leaders, with few messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings, strategies as st

from distrun.runtime.transport.control.control_tree import ControlTree, control_tree

HOSTS = ((0, 1), (2, 3, 4), (5,), (6, 7), (8, 9))


def test_the_tree_has_each_host_once_and_no_more_children_than_allowed():
    hosts = tuple(tuple(range(3 * host, 3 * host + 3)) for host in range(50))
    for fan_out in (1, 2, 7, 32, 64):
        trees = {ranks[0]: ControlTree(hosts, ranks[0], fan_out) for ranks in hosts}
        children = [child for tree in trees.values() for child in tree.children]
        assert sorted([0, *children]) == [ranks[0] for ranks in hosts]
        for leader, tree in trees.items():
            assert len(tree.children) <= fan_out
            assert all(trees[child].parent == leader for child in tree.children)
            below = [rank for child in tree.children for rank in tree.subtree(child)]
            assert sorted([*below, *tree.local_ranks]) == list(tree.subtree(leader))
            assert all(rank in tree.subtree(tree.hop(rank)) for rank in below)
        assert trees[0].subtree(0) == tuple(range(150))
    assert ControlTree(hosts, 4, 2).parent is None
    assert ControlTree(hosts, 4, 2).children == ()
    assert ControlTree(hosts, 4, 2).leader == 3


def test_there_is_a_tree_only_where_ranks_are_many():
    few, many = tuple((host,) for host in range(65)), tuple((host,) for host in range(66))
    assert control_tree(few, 3, 0) is None
    assert control_tree(few, 3, 5) == ControlTree(few, 3, 5)
    assert control_tree(many, 3, 0) == ControlTree(many, 3, 8)


@pytest.mark.parametrize("fan_out", [1, 2, 4])
def test_one_message_per_host_goes_up_and_one_comes_down(job_of, fan_out):
    job = job_of(HOSTS, fan_out)
    for name in ("a", "b", "a", "b", "a"):
        assert job.submit(name) == 2 * (len(HOSTS) - 1)
    assert {tuple(rank.executed) for rank in job.ranks} == {("a", "b", "a", "b", "a")}


def test_a_rank_with_another_order_is_no_obstacle_and_order_comes_back(job_of):
    job = job_of(HOSTS, 2)
    for names in (["a", "b", "c"], ["a", "b", "c"]):
        for rank in job.ranks:
            for name in names if rank.number != 7 else reversed(names):
                rank.submit(name)
        job.settle()
    orders = {tuple(rank.executed) for rank in job.ranks}
    assert len(orders) == 1
    assert sorted(orders.pop()) == ["a", "a", "b", "b", "c", "c"]
    assert job.submit("a") == 2 * (len(HOSTS) - 1)


@pytest.mark.parametrize("fan_out", [0, 1, 2])
def test_ranks_that_disagree_are_told_as_without_a_tree(job_of, fan_out):
    job = job_of(HOSTS, fan_out)
    for _ in range(2):
        for rank in job.ranks:
            rank.submit("x", count=3 if rank.number in (4, 8) else 2)
        job.settle()
    (sentence,) = {rank.errors.pop("x") for rank in job.ranks}
    assert (
        "allreduce 'x': the ranks disagree about shapes: ranks 0-3, 5-7, 9 asked for shapes [2] at conftest.py"
        in sentence
    )
    assert "; ranks 4, 8 asked for shapes [3] at conftest.py" in sentence
    job.submit("y")
    assert {tuple(rank.executed) for rank in job.ranks} == {("y",)}


@pytest.mark.parametrize("fan_out", [0, 1, 2])
def test_who_is_missing_is_told_whatever_leaders_hold(job_of, fan_out):
    job = job_of(HOSTS, fan_out)
    handles = {rank.number: rank.submit("x") for rank in job.ranks if rank.number not in (4, 6)}
    job.settle(6)  # the leader of a host, which is about other things
    inquiry = job.ranks[9].ask(handles[9])
    job.settle(6)
    assert inquiry.answer is None or fan_out == 0  # it has been woken, and passes on what it holds
    job.settle()
    assert inquiry.answer.endswith("not by <4>, <6>")
    assert inquiry.answer.startswith("submitted by ranks 0-3, 5, 7-9 (at conftest.py")
    job.ranks[5].ask(handles[5], "is given up: {who}")
    job.settle()
    assert handles[5].error is not None
    for rank in job.ranks:
        if rank.number in (4, 6):
            rank.submit("x")
    job.settle()
    assert {rank.errors["x"] for rank in job.ranks} == {f"allreduce 'x' is given up: {inquiry.answer}"}
    job.submit("x")
    assert {tuple(rank.executed) for rank in job.ranks} == {("x",)}


def test_a_survey_without_all_answers_ends(job_of):
    job = job_of(HOSTS, 1)
    handles = {rank.number: rank.submit("x") for rank in job.ranks if rank.number != 8}
    inquiry = job.ranks[0].ask(handles[0])
    job.settle(8)
    assert inquiry.answer is None
    job.now += 1.1
    job.settle(8)
    assert inquiry.answer.endswith("not by <8>, <9>")  # what 9 has said lies with its leader


def test_ranks_join_and_go_on_together(job_of):
    job = job_of(HOSTS, 2)
    job.submit("x", None)
    joined = [rank.join() for rank in job.ranks if rank.number in (3, 8)]
    for rank in job.ranks:
        if rank.number not in (3, 8):
            rank.submit("x")
            rank.submit(None)
    job.settle()
    joined += [rank.join() for rank in job.ranks if rank.number not in (3, 8)]
    job.settle()
    assert len({handle.given for handle in joined}) == 1
    assert job.submit("x") == 2 * (len(HOSTS) - 1)


def test_operations_of_sets_go_their_own_way(job_of):
    sets = {1: (2, 3, 4), 2: (1, 4, 9), 3: (5, 6)}
    job = job_of(HOSTS, 1, sets)
    for _ in range(3):
        for rank in job.ranks:
            rank.submit("x")
            for number, members in sets.items():
                if rank.number in members:
                    rank.submit("s", process_set=number)
        job.settle()
    for rank in job.ranks:
        own = sum(rank.number in members for members in sets.values())
        assert rank.executed.count("x") == 3
        assert rank.executed.count("s") == 3 * own


def test_a_rank_that_may_be_asleep_is_woken_by_its_leader(job_of):
    job = job_of(HOSTS, 1)
    job.ranks[9].plane.alarm(0)  # passes leaders 8, 6, 5 and 2
    job.settle()
    assert job.service_bells[8].rings == 1
    assert job.networks[0].alarms == 1
    job.ranks[0].plane.alarm(9)
    job.settle()
    assert job.service_bells[9].rings == 1
    assert [job.networks[leader].alarms for leader in (2, 5, 6, 8)] == [2, 2, 2, 1]


# Shrinking a failure takes longer than it helps.
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(data=st.data())
def test_whatever_ranks_submit_in_whatever_order_is_executed_alike(job_of, data):
    size = data.draw(st.integers(1, 9), "ranks")
    cuts = data.draw(st.sets(st.integers(1, 8)), "first ranks of hosts")
    bounds = [0, *sorted(cut for cut in cuts if cut < size), size]
    hosts = [range(start, stop) for start, stop in pairwise(bounds)]
    sets = {1: tuple(range(0, size, 2)), 2: tuple(range(size // 2, size))}
    job = job_of(hosts, data.draw(st.integers(1, 3), "fan out"), sets)
    waiting: list[list[tuple[str | None, int]]] = []
    for _ in range(data.draw(st.integers(1, 3), "rounds")):
        names = [*data.draw(st.lists(st.sampled_from("abcd"), unique=True)), *data.draw(st.sampled_from([[], [None]]))]
        for rank in range(size):
            mine = [(name, 0) for name in data.draw(st.permutations(names))]
            mine += [("s", number) for number, members in sets.items() if rank in members]
            waiting.append(mine)
    for number in range(0, len(waiting), size):
        todo = [list(each) for each in waiting[number : number + size]]
        while any(todo):
            rank = data.draw(st.sampled_from([index for index in range(size) if todo[index]]))
            name, process_set = todo[rank].pop(0)
            job.ranks[rank].submit(name, process_set=process_set)
            for other in data.draw(st.lists(st.integers(0, size - 1), max_size=4)):
                job.ranks[other].progress()
        job.settle()
    for rank in job.ranks:
        assert not rank.errors
        assert rank.operations.is_empty
        common = [name for name in rank.executed if name != "s"]
        assert common == [name for name in job.ranks[0].executed if name != "s"]
