"""The places of ranks, and the variables that follow from them, in any generation."""

from collections import Counter

from hypothesis import given, strategies as st

from distrun.contract.launch import LaunchContract
from distrun.runner.planning.variables.ranks import MasterEndpoint, RankLocation, RankVariables

VARIABLES = RankVariables("0" * 32, "1" * 64)
ENDPOINT = MasterEndpoint("10.0.0.1", 29400, "10.0.0.1:5000")
PLACES = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), min_size=1, max_size=20, unique=True)


@given(PLACES)
def test_local_and_cross_ranks_are_numbered_without_gaps_wherever_ranks_are(places):
    contracts = VARIABLES.contracts([RankLocation(*place) for place in places], ENDPOINT, 3)
    assert [contract.rank for contract in contracts] == list(range(len(places)))
    sizes = Counter(host for host, _ in places)
    for contract, (host, slot) in zip(contracts, places, strict=True):
        assert (contract.hostname, contract.slot, contract.local_size) == (host, slot, sizes[host])
        assert contract.local_rank == sum(other < slot for name, other in places if name == host)
        assert contract.cross_size == sum(size > contract.local_rank for size in sizes.values())
    assert set(Counter((contract.local_rank, contract.cross_rank) for contract in contracts).values()) == {1}
    assert all(contract.cross_rank < contract.cross_size for contract in contracts)


@given(PLACES)
def test_hosts_follow_each_other_in_one_order_whatever_the_local_rank(places):
    contracts = VARIABLES.contracts([RankLocation(*place) for place in places], ENDPOINT)
    orders = {}
    for contract in sorted(contracts, key=lambda contract: contract.cross_rank):
        orders.setdefault(contract.local_rank, []).append(contract.hostname)
    first = list(dict.fromkeys(host for host, _ in places))
    assert all(order == [host for host in first if host in order] for order in orders.values())


def test_a_rank_is_told_its_generation_its_slot_and_how_often_ranks_were_restarted():
    made = RankVariables("0" * 32, "1" * 64, restarts=2).contracts([RankLocation("a", 3)], ENDPOINT, 4)
    assert (made[0].generation, made[0].slot, made[0].local_rank, made[0].restart) == (4, 3, 0, 5)


def test_frameworks_are_told_in_their_own_words_and_the_users_exports_stay():
    variables = RankVariables(
        *("0" * 32, "1" * 64, frozenset({"MASTER_PORT"})),
        openmpi=True,
        torchrun=True,
        horovod=True,
        elastic=True,
        max_restarts=7,
    )
    (contract,) = variables.contracts([RankLocation("a", 0)], ENDPOINT, 2)
    found = variables.of(contract, 0, 1)
    assert "MASTER_PORT" not in found
    assert LaunchContract.from_environ(found) == contract
    assert (found["TORCHELASTIC_RESTART_COUNT"], found["TORCHELASTIC_MAX_RESTARTS"]) == ("1", "7")
    assert (found["HOROVOD_ELASTIC"], found["OMPI_COMM_WORLD_RANK"]) == ("1", "0")
    assert found["JAX_COORDINATOR_ADDRESS"] == "10.0.0.1:29400"
