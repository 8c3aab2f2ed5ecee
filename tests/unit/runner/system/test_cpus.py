"""Each rank's share of the CPUs, on machines of several shapes."""

import os

import pytest
from hypothesis import given, strategies as st

from distrun.runner.system.cpus import divided, format_cpus, groups, parse_cpus, share


@pytest.fixture
def machine(tmp_path):
    """Describes a machine of two sockets, four cores and eight CPUs, whose even numbers are on the first socket."""
    for cpu in range(8):
        topology = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu % 2}\n")
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    for node, cpus in enumerate(["0,2,4,6", "1,3,5,7"]):
        (tmp_path / "node" / f"node{node}").mkdir(parents=True)
        (tmp_path / "node" / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    return tmp_path


def test_sockets_nodes_and_cores_hold_their_cpus_and_cores_of_a_socket_follow_each_other(machine):
    assert groups("core", range(8), machine) == [{0, 4}, {2, 6}, {1, 5}, {3, 7}]
    for kind in ("socket", "numa"):
        assert groups(kind, range(8), machine) == [{0, 2, 4, 6}, {1, 3, 5, 7}]


def test_only_the_cpus_of_our_own_set_are_divided(machine):
    assert groups("core", {1, 5, 7}, machine) == [{1, 5}, {7}]
    assert groups("numa", {1, 5, 7}, machine) == [{1, 5, 7}]


def test_cpus_about_which_the_system_says_nothing_are_cores_of_one_socket(tmp_path):
    assert groups("core", {0, 3}, tmp_path) == [{0}, {3}]
    assert groups("socket", {0, 3}, tmp_path) == [{0, 3}]


@pytest.mark.parametrize(
    ("count", "shares"),
    [
        (1, [{0, 1, 2, 3}]),
        (2, [{0, 1}, {2, 3}]),
        (3, [{0}, {1}, {2, 3}]),
        (4, [{0}, {1}, {2}, {3}]),
        (6, [{0}, {0}, {1}, {2}, {2}, {3}]),
    ],
)
def test_groups_are_divided_and_shared_only_where_there_are_too_few(count, shares):
    assert [divided([{0}, {1}, {2}, {3}], index, count) for index in range(count)] == shares


@given(st.integers(1, 40), st.integers(1, 40))
def test_every_cpu_is_used_and_shares_are_equal_give_or_take_one(cpus, count):
    shares = [divided([{cpu} for cpu in range(cpus)], index, count) for index in range(count)]
    if count <= cpus:
        assert sorted(cpu for part in shares for cpu in part) == list(range(cpus))
    sizes = [len(part) for part in shares]
    assert max(sizes) - min(sizes) <= 1


def test_the_cpus_of_this_machine_are_what_this_process_may_use():
    assert share("core", 0, 1) == share("numa", 0, 1) == os.sched_getaffinity(0)


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_cpus_is_the_inverse_of_printing_them(cpus):
    assert parse_cpus(format_cpus(cpus)) == cpus
    assert format_cpus([0, 1, 2, 3, 8]) == "0-3,8"
