"""A topology can only hold numbers that fit together, and prints value and total side by side."""

import dataclasses

import pytest
from hypothesis import given, strategies as st

from distrun.contract.topology import Topology, local_ranks
from distrun.errors import UsageError

FIFTH = Topology(rank=5, size=8, local_rank=1, local_size=2, cross_rank=2, cross_size=4, hostname="nodeA")


def test_its_repr_shows_each_index_with_its_size():
    assert repr(FIFTH) == "rank 5(8), local 1(2), host 2(4) on nodeA"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 8}, r"^rank 8 must be between 0 and 7 \(size - 1\): .*`distrun`"),
        ({"rank": -1}, r"^rank -1 must be between 0 and 7"),
        ({"local_rank": 2}, r"^local_rank 2 must be between 0 and 1 \(local_size - 1\)"),
        ({"cross_rank": 4}, r"^cross_rank 4 must be between 0 and 3 \(cross_size - 1\)"),
        ({"size": 10**11}, r"^size 100000000000 is more than the 1048576 ranks that a job can have"),
        ({"size": 0}, r"^size 0 must be at least 1"),
        ({"local_size": 9}, r"^local_size 9 must be between 1 and the size, 8"),
        ({"cross_size": 0}, r"^cross_size 0 must be between 1 and the size, 8"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_with_value_limit_and_remedy(change, message):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(FIFTH, **change)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_ranks_of_a_host_follow_from_the_places_of_all(sizes, chooser):
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    chooser.shuffle(hosts)
    numbers = list(dict.fromkeys(hosts))  # as ranks number them
    places = []
    for rank, host in enumerate(hosts):
        local = hosts[:rank].count(host)
        having = [other for other in numbers if hosts.count(other) > local]
        places.append((local, hosts.count(host), having.index(host)))
    for rank, host in enumerate(hosts):
        assert local_ranks(places, rank) == tuple(other for other, its in enumerate(hosts) if its == host)
