"""The request to an executor on Ray, the ranks of workers by node, and the variables of the ranks."""

import dataclasses

import pytest

import distrun
from distrun.errors import NotOfferedError, UsageError
from distrun.host.interfaces import Interface
from distrun.ray.options import (
    Settings,
    WorkerRequest,
    number_of_cpus,
    number_of_gpus,
    number_of_workers,
    refuse_elastic,
    variables,
)
from distrun.ray.placement import WorkerFacts, bundles, capacity, listed, node_names, rank_order, visible_gpus
from distrun.ray.world import rank_environs
from distrun.runner.planning.variables.environ import forwarded_settings


def worker(node="a", address="10.0.0.1", gpus=(), pid=1, port=4000):
    """Return the facts of a worker."""
    interface = Interface("eth1", address.replace("10.0.0", "10.9.9"), 24)
    return WorkerFacts(node, address, pid, distrun.__version__, port, port + 1, (interface,), gpus)


def request(workers, hosts=None, gpus=0):
    """Return a request for workers."""
    return WorkerRequest(workers, hosts, 2, gpus, True, Settings(), False)


@pytest.mark.parametrize(
    ("given", "meant"),
    [((4, None, None), (4, None)), ((None, 2, 3), (6, 2)), ((6, 2, 3), (6, 2)), ((None, 2, 1), (2, 2))],
)
def test_workers_are_given_by_their_number_or_by_hosts(given, meant):
    assert number_of_workers(*given) == meant


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((0, None, None), "num_workers=0 is not a number of workers"),
        ((None, "2", 1), "num_hosts='2' is not a number of hosts"),
        ((5, 2, 3), "num_workers=5 is not num_hosts=2 times num_workers_per_host=3: leave num_workers out"),
        ((None, None, None), "neither num_workers nor num_hosts is given"),
    ],
)
def test_impossible_numbers_are_refused(given, sentence):
    with pytest.raises(UsageError, match=sentence):
        number_of_workers(*given)


def test_gpus_are_whole_and_imply_use_gpu():
    assert [number_of_gpus(False, None), number_of_gpus(True, None), number_of_gpus(False, 2)] == [0, 1, 2]
    for use, gpus in ((True, 0), (True, 0.5), (False, -1)):
        with pytest.raises(UsageError, match="a rank has GPUs of its own"):
            number_of_gpus(use, gpus)


def test_cpus_may_be_fractions_and_something_is_reserved():
    assert [number_of_cpus(1, 0), number_of_cpus(0.5, 0), number_of_cpus(0, 1)] == [1.0, 0.5, 0.0]
    for cpus, gpus in ((-1, 0), ("2", 0), (float("nan"), 0), (float("inf"), 1), (0, 0)):
        with pytest.raises(UsageError, match=r"cpus_per_worker=.*: give a number"):
            number_of_cpus(cpus, gpus)


def test_variables_are_text_by_names():
    assert [variables("env", None), variables("env", {"A": "1"})] == [{}, {"A": "1"}]
    with pytest.raises(UsageError, match=r"env has 'A': 1: names and values of variables are text"):
        variables("env", {"A": 1})
    with pytest.raises(UsageError, match=r"env='A=1' has no variables"):
        variables("env", "A=1")


def test_settings_are_seconds_and_interfaces():
    assert Settings(nics={"eth1"}).network == Settings(nics="eth1").network == "eth1"
    for wrong in ({"timeout_s": "x"}, {"timeout_s": 0}, {"placement_group_timeout_s": float("inf")}):
        with pytest.raises(UsageError, match=r"timeout_s=.*: give a number of seconds above 0"):
            Settings(**wrong)


def test_elastic_workers_are_refused_with_what_to_do():
    refuse_elastic(min_workers=None)
    with pytest.raises(NotOfferedError, match=r"min_workers=2: the workers .* neither come nor go"):
        refuse_elastic(min_workers=2)


def test_bundles_are_packed_or_one_for_each_host():
    assert bundles(request(3)) == ([{"CPU": 2.0}] * 3, "PACK")
    assert bundles(request(6, hosts=2, gpus=1)) == ([{"CPU": 6.0, "GPU": 3.0}] * 2, "STRICT_SPREAD")


def test_nodes_have_room_for_so_many_bundles():
    nodes = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 3.0}]
    for bundle, packed, spread in (({"CPU": 1.0}, 7, 2), ({"CPU": 2.0}, 3, 2), ({"CPU": 0.0, "GPU": 1.0}, 1, 1)):
        assert (capacity(bundle, nodes, "PACK"), capacity(bundle, nodes, "STRICT_SPREAD")) == (packed, spread)
    assert listed({"CPU": 0.5, "GPU": 2.0}) == "0.5 CPU and 2 GPU"


def test_the_ranks_of_a_node_follow_each_other_by_their_gpus():
    facts = [worker("a", gpus=("10",)), worker("b", gpus=("1",)), worker("a", gpus=("9",)), worker("b", gpus=("0",))]
    assert rank_order(facts) == [2, 0, 3, 1]
    assert rank_order([worker("a"), worker("b"), worker("a")]) == [0, 2, 1]


def test_a_gpu_is_where_its_local_rank_looks_for_it():
    facts = [worker("a", gpus=("0", "1")), worker("b", gpus=("7",)), worker("a", gpus=("2", "3"))]
    assert visible_gpus(facts, "a") == ["0", "2", "1", "3"]
    assert visible_gpus(facts, "b") == ["7"]


def test_nodes_that_share_an_address_have_names_of_their_own():
    facts = [worker("abcdefghij"), worker("klmnopqrst"), worker("c", "10.0.0.3")]
    assert list(node_names(facts).values()) == ["10.0.0.1-abcdefgh", "10.0.0.1-klmnopqr", "10.0.0.3"]


def test_ranks_are_told_who_they_are_and_where_they_meet():
    facts = [worker("a", gpus=("0",)), worker("a", gpus=("1",)), worker("b", "10.0.0.2", gpus=("0",))]
    environs = rank_environs(facts, {"EXTRA": "1"})
    numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DISTRUN_CROSS_RANK", "CUDA_VISIBLE_DEVICES")
    assert [[environ[name] for name in numbers] for environ in environs] == [
        ["0", "3", "0", "2", "0", "0,1"],
        ["1", "3", "1", "2", "0", "0,1"],
        ["2", "3", "0", "1", "1", "0"],
    ]
    assert {environ["DISTRUN_RENDEZVOUS"] for environ in environs} == {"10.0.0.1:4000"}
    assert len({environ["DISTRUN_KEY"] for environ in environs}) == 1
    assert environs[0]["DISTRUN_KEY"] != rank_environs(facts, {})[0]["DISTRUN_KEY"]
    assert "HOROVOD_RANK" not in environs[0]
    chosen = rank_environs(facts, {}, horovod=True, network="eth1")
    assert chosen[1]["DISTRUN_RENDEZVOUS"] == "10.9.9.1:4000"
    assert chosen[1]["HOROVOD_LOCAL_RANK"] == "1"
    assert rank_environs(facts[:2], {})[0]["DISTRUN_RENDEZVOUS"] == ""


def test_workers_without_gpus_see_none_and_another_version_is_refused():
    assert rank_environs([worker()], {})[0]["CUDA_VISIBLE_DEVICES"] == ""
    with pytest.raises(UsageError, match=r"node 10\.0\.0\.1 has distrun 0\.0\.1, and this process"):
        rank_environs([dataclasses.replace(worker(), version="0.0.1")], {})


def test_settings_reach_the_workers_without_secrets_and_places_of_this_process():
    environ = {"DISTRUN_STALL_WARNING": "5", "DISTRUN_KEY": "k", "DISTRUN_RANK": "3", "PYTHONPATH": "x", "HOME": "/"}
    assert forwarded_settings(environ) == {"DISTRUN_STALL_WARNING": "5"}
    in_mode = {"DISTRUN_HOROVOD": "1", "HOROVOD_CACHE_CAPACITY": "7", "HOROVOD_RANK": "2"}
    assert forwarded_settings(in_mode) == {"DISTRUN_HOROVOD": "1", "HOROVOD_CACHE_CAPACITY": "7"}
