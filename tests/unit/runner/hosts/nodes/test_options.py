"""The options of a launcher that is started on every node, as torchrun's users type them."""

import pytest

from distrun.errors import UsageError
from distrun.runner.hosts.nodes import options as module
from distrun.runner.hosts.nodes.options import count_ranks, node_options, parse_size

NODES = ("nnodes", "nproc_per_node", "node_rank", "rdzv_endpoint", "rdzv_id", "rdzv_conf")
NONE = dict.fromkeys([*NODES, "np", "hosts", "hostfile", "slots", "ranks_per_host", "launcher", "mpi_args"])
TWO = {"nnodes": "2", "rdzv_endpoint": "a:29500"}


def read(environ=None, **given):
    return node_options({**NONE, "stdin": "none", **given}, environ or {})


def test_without_such_options_there_are_no_nodes():
    assert read() is None


def test_a_single_node_meets_nobody():
    found = read(nproc_per_node="3", rdzv_endpoint="localhost:0")
    assert (found.ranks, found.rendezvous) == (3, None)


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        ("a:29500", ("a", 29500)),
        ("a", ("a", 29400)),
        ("[fd00::1]:5", ("fd00::1", 5)),
        ("fd00::1", ("fd00::1", 29400)),
        ("[fd00::1]", ("fd00::1", 29400)),
    ],
)
def test_the_endpoint_may_lack_its_port(endpoint, place):
    assert read(nnodes="2", rdzv_endpoint=endpoint).rendezvous.endpoint.address == place


def test_the_settings_of_the_rendezvous_are_obeyed():
    found = read(**TWO, rdzv_conf="timeout=9, last_call_timeout=2,is_host=true,read_timeout=60").rendezvous
    assert (found.endpoint.timeout, found.last_call, found.is_host) == (9.0, 2.0, True)
    assert read(**TWO, rdzv_conf="join_timeout=7").rendezvous.endpoint.timeout == 7.0
    found = read(**TWO).rendezvous
    assert (found.endpoint.timeout, found.last_call, found.is_host) == (600.0, 30.0, None)


def test_nodes_know_each_other_by_the_key_and_without_one_by_the_name():
    key = {"DISTRUN_KEY": "k" * 32}
    named = [read(**TWO, rdzv_id=name).rendezvous.endpoint.secret for name in ("x", "y")]
    assert named[0] != named[1]
    keyed = {read(key, **TWO, rdzv_id=name).rendezvous.endpoint.secret for name in ("x", "y", None)}
    assert len(keyed) == 1
    assert not keyed & set(named)


@pytest.mark.parametrize(("text", "size"), [("1", (1, 1)), ("2", (2, 2)), ("2:4", (2, 4)), ("1:1", (1, 1))])
def test_numbers_of_nodes(text, size):
    assert parse_size(text) == size


def test_ranks_are_counted_by_gpus_or_cores(monkeypatch):
    monkeypatch.setattr(module, "count_cores", lambda: 8)
    for gpus, auto in ((4, 4), (0, 8)):
        monkeypatch.setattr(module, "visible_gpus", lambda environ, gpus=gpus: gpus)
        assert (count_ranks("auto", {}), count_ranks("cpu", {}), count_ranks("3", {})) == (auto, 8, 3)
    with pytest.raises(UsageError, match="this machine shows no GPU"):
        count_ranks("gpu", {})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nnodes": "0"}, "--nnodes 0 is no number of nodes"),
        ({"nnodes": "4:2"}, "--nnodes 4:2 is no number of nodes"),
        ({"nnodes": "2"}, "--nnodes 2 needs a place where the nodes meet"),
        ({"nnodes": "2", "rdzv_endpoint": "a:0"}, "--rdzv-endpoint 'a:0' is no place to meet"),
        ({"nproc_per_node": "0"}, "--nproc-per-node 0 is no number of ranks"),
        ({**TWO, "node_rank": 2}, "--node-rank 2 is not one of 2 nodes: allowed are 0 to 1"),
        ({**TWO, "np": 4}, "--nnodes and -np exclude each other"),
        ({"nproc_per_node": "2", "hosts": "a"}, "--nproc-per-node and --hosts exclude each other"),
        ({**TWO, "stdin": "0"}, "--stdin 0 does not go with --nnodes 2"),
        ({"rdzv_endpoint": "a:1"}, "--rdzv-endpoint a:1 needs --nnodes"),
        ({**TWO, "rdzv_conf": "timeout=soon"}, "--rdzv-conf timeout=soon: allowed are seconds > 0"),
        ({**TWO, "rdzv_conf": "is_host=1,timeout"}, "'timeout' is no setting"),
        ({**TWO, "rdzv_conf": "is_host=perhaps"}, "--rdzv-conf is_host=perhaps: allowed are true and false"),
    ],
)
def test_what_cannot_be_met_is_refused_in_a_sentence(given, words):
    with pytest.raises(UsageError) as refused:
        read(**given)
    assert words in str(refused.value)
