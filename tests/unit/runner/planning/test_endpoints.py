"""Endpoints that ranks are told when all hosts have answered."""

import json
from dataclasses import replace

import pytest

from distrun.errors import UsageError
from distrun.host.interfaces import Interface
from distrun.runner.planning.endpoints import completed
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.planner import make_plan
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route
from distrun.runner.protocol.handshake import HostInfo

ANSWERS = {
    "here": HostInfo(
        "1", "3", 1, 81, "", (Interface("eth0", "10.0.0.1", 24), Interface("lan", "10.1.0.1", 24)), 91, (71, 72)
    ),
    "a": HostInfo(
        *("1", "3", 2, 82, ""),
        (Interface("wan", "203.0.113.5", 28), Interface("lan", "fd00::2", 64), Interface("lan", "10.1.0.2", 24)),
        *(92, (73, 74)),
    ),
    "b": HostInfo("1", "3", 3, 83, "", (Interface("lan", "10.1.0.3", 24),), 93, (75, 76)),
}
SERVING = {name: replace(info, servers=(info.port + 100, info.port + 200)) for name, info in ANSWERS.items()}


def complete(*hosts, environ=None, answers=ANSWERS, **request):
    routes = {name: Route(name, f"{name}.net") for name in ("a", "b")}
    launcher = LaunchContext(environ or {}, "/", "0" * 32, "1" * 64, 4711, cores=2, slots=2, routes=routes)
    made = make_plan(LaunchRequest(("train",), hosts=tuple(Host(name, 2) for name in hosts), **request), launcher)
    return made, completed(made, answers.__getitem__)


def told(parts, *names):
    (values,) = {tuple(rank.environ.get(name) for name in names) for part in parts.values() for rank in part.ranks}
    return values


def test_all_ranks_are_told_where_rank_0_is():
    _, parts = complete("a", "b", "here")
    assert told(parts, "MASTER_ADDR", "DISTRUN_MASTER_ADDR") == ("10.1.0.2", "10.1.0.2")
    assert told(parts, "MASTER_PORT", "DISTRUN_MASTER_PORT") == ("82", "82")
    assert told(parts, "DISTRUN_RENDEZVOUS") == ("10.1.0.2:92,203.0.113.5:92,[fd00::2]:92",)


def test_rank_0_may_be_here():
    _, parts = complete("here", "b")
    assert told(parts, "MASTER_ADDR", "MASTER_PORT", "DISTRUN_RENDEZVOUS") == (
        *("10.1.0.1", "81"),
        "10.1.0.1:91,10.0.0.1:91",
    )


def test_a_machine_under_two_names_is_refused_with_both(monkeypatch):
    for name in ("a", "here"):
        monkeypatch.setitem(ANSWERS, name, replace(ANSWERS[name], machine="boot net:[1] pid:[1] 0 vm"))
    monkeypatch.setitem(ANSWERS, "b", replace(ANSWERS["b"], machine="boot net:[2] pid:[1] 0 b"))
    complete("a", "b")
    with pytest.raises(UsageError, match=r"hosts 'a' and 'here' are one machine, .*: list it once, as in a:4"):
        complete("a", "b", "here")


def test_what_the_user_exports_stands():
    _, parts = complete("a", "b", exports=("MASTER_PORT=1", "MASTER_ADDR=me"))
    assert told(parts, "MASTER_ADDR", "MASTER_PORT", "DISTRUN_MASTER_ADDR") == (None, None, "10.1.0.2")


def test_a_host_alone_needs_no_network():
    made, parts = complete("a")
    assert made.needs_host_info
    assert told(parts, "MASTER_ADDR", "MASTER_PORT", "DISTRUN_RENDEZVOUS") == ("127.0.0.1", "82", "")
    assert parts["a"].defaults == {}
    made, _ = complete("here")
    assert not made.needs_host_info
    assert told({"here": made.agents[0]}, "MASTER_PORT", "DISTRUN_RENDEZVOUS") == ("4711", "")


def test_gloo_is_shown_the_interface_that_leads_to_the_others():
    _, parts = complete("a", "b", "here")
    assert [part.defaults for part in parts.values()] == [{"GLOO_SOCKET_IFNAME": "lan"}] * 3


@pytest.mark.parametrize(
    "asked",
    [
        {"network": "10.1.0.0/16"},
        {"environ": {"DISTRUN_NETWORK": "10.1.0.0/16"}},
        {"exports": ("DISTRUN_NETWORK=lan",)},
    ],
)
def test_a_chosen_network_is_what_all_programs_are_told(asked):
    made, parts = complete("a", "here", **asked)
    assert told(parts, "DISTRUN_RENDEZVOUS")[0].startswith("10.1.0.2:92")
    assert "203" not in told(parts, "DISTRUN_RENDEZVOUS")[0]
    assert [part.defaults["NCCL_SOCKET_IFNAME"] for part in parts.values()] == ["=lan"] * 2
    assert {part.environ["DISTRUN_NETWORK"] for part in made.agents} == {made.network}


def test_a_first_host_that_others_cannot_reach_is_an_error_before_any_rank_starts():
    answers = {**ANSWERS, "a": replace(ANSWERS["a"], addresses=())}
    with pytest.raises(UsageError, match="host 'a', where rank 0 is to run, has no address that other hosts can reach"):
        complete("a", "b", answers=answers)
    _, parts = complete("b", "a", answers=answers)
    assert told(parts, "DISTRUN_RENDEZVOUS") == ("10.1.0.3:93",)


def test_a_network_that_one_host_lacks_is_an_error_before_any_rank_starts():
    with pytest.raises(UsageError, match="--network 'wan' allows no interface of host 'b'"):
        complete("a", "b", network="wan")


def test_tf_config_has_a_port_of_its_host_for_each_rank():
    _, parts = complete("a", "here", tf_config=True, ps=1)
    configs = [json.loads(rank.environ["TF_CONFIG"]) for part in parts.values() for rank in part.ranks]
    assert {json.dumps(config["cluster"]) for config in configs} == {
        '{"ps": ["10.1.0.2:73"], "chief": ["10.1.0.2:74"], "worker": ["10.1.0.1:71", "10.1.0.1:72"]}'
    }
    tasks = [(config["task"]["type"], config["task"]["index"]) for config in configs]
    assert tasks == [("ps", 0), ("chief", 0), ("worker", 0), ("worker", 1)]


def test_tf_config_on_one_host_needs_no_network_and_the_users_own_stands():
    _, parts = complete("here", tf_config=True)
    config = json.loads(parts["here"].ranks[1].environ["TF_CONFIG"])
    assert config == {"cluster": {"worker": ["127.0.0.1:71", "127.0.0.1:72"]}, "task": {"type": "worker", "index": 1}}
    _, parts = complete("here", tf_config=True, exports=("TF_CONFIG=mine",))
    assert parts["here"].environ["TF_CONFIG"] == "mine"
    assert "TF_CONFIG" not in parts["here"].ranks[0].environ


def test_servers_are_found_where_they_are_and_then_where_they_may_move_to():
    own = {"servers": 2, "server_hosts": (Host("b"),)}
    answers = {**SERVING, "here": replace(SERVING["here"], servers=())}
    _, parts = complete("here", answers=answers, **own)
    assert told(parts, "DISTRUN_SERVERS") == ("10.1.0.3:183;10.1.0.3:283",)
    _, parts = complete("here", answers=SERVING, **own, server_copies="5:/copies")
    here = "10.1.0.1:{0},10.0.0.1:{0}"
    assert told(parts, "DISTRUN_SERVERS") == (f"10.1.0.3:183,{here.format(181)};10.1.0.3:283,{here.format(281)}",)
    (servers,) = [part.servers for part in parts.values() if part.servers]
    assert servers[1].environ["DISTRUN_SERVERS"] == told(parts, "DISTRUN_SERVERS")[0]
