"""Requests become plans: which rank runs where, with which environment."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from distrun.contract import horovod
from distrun.contract.launch import LaunchContract
from distrun.errors import UsageError
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import AgentPlan, RankPlan, describe
from distrun.runner.planning.planner import make_plan
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route

LAUNCHER = LaunchContext(
    environ={"PATH": "/bin", "RANK": "7", "HOME": "/root"},
    cwd="/work",
    job="0" * 32,
    key="5ec4e7" * 10 + "5ec4",
    master_port=4711,
    cores=8,
    slots=2,
)


def plan(**request):
    return make_plan(LaunchRequest(**{"command": ("train",), **request}), LAUNCHER)


def remote_plan(*hosts, remote=("a", "b"), **request):
    """A plan in which some hosts are not this machine."""
    routes = {name: Route(name, f"{name}.net", jump=Route("gate", "gate")) for name in remote}
    launcher = replace(LAUNCHER, routes=routes, address="10.0.0.1")
    return make_plan(LaunchRequest(**{"command": ("train",), "hosts": hosts, **request}), launcher)


def test_a_host_listed_without_slots_takes_one_rank_or_its_share_wherever_the_command_is_typed():
    hosts = Host("here"), Host("a"), Host("b", 2)
    for remote in (("a", "b"), ("here", "b"), ("here", "a", "b")):
        made = remote_plan(*hosts, remote=remote)
        assert [len(agent.ranks) for agent in made.agents] == [1, 1, 2]
        assert made.notes[0] == "1 slot on here, a, as no number is given; NAME:SLOTS or --slots give more"
        assert [len(agent.ranks) for agent in remote_plan(*hosts, remote=remote, np=8).agents] == [3, 3, 2]
    assert [len(agent.ranks) for agent in plan().agents] == [LAUNCHER.slots]


def contracts_of(made):
    return [LaunchContract.from_environ(rank.environ) for agent in made.agents for rank in agent.ranks]


@pytest.mark.parametrize(
    ("hosts", "address"),
    [(["a", "b"], "a.net"), (["here", "a"], "10.0.0.1"), (["a", "here"], "a.net"), (["a"], "127.0.0.1")],
)
def test_the_master_is_where_the_other_hosts_reach_rank_0(hosts, address):
    made = remote_plan(*[Host(name, 1) for name in hosts])
    assert {contract.master_addr for contract in contracts_of(made)} == {address}


def test_a_remote_rank_gets_of_the_launchers_environment_only_what_it_must_have():
    launcher = {
        **LAUNCHER.environ,
        "PYTHONPATH": "/src",
        "DISTRUN_FUSION_THRESHOLD": "1",
        "DISTRUN_KEY": "old",
        "B": "c",
    }
    with_more = replace(LAUNCHER, environ=launcher, routes={"a": Route("a", "a")})
    request = LaunchRequest(("train",), hosts=(Host("a", 2),), exports=("B", "C=d"), stall_warning=2.0)
    (agent,) = make_plan(request, with_more).agents
    assert agent.remote
    assert agent.environ == {
        **{"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "auto", "PYTHONPATH": "/src", "B": "c", "C": "d"},
        **{"DISTRUN_FUSION_THRESHOLD": "1", "DISTRUN_STALL_WARNING": "2"},
    }


def test_slots_for_all_hosts_that_state_none():
    made = remote_plan(Host("here"), Host("a"), Host("b", 1), slots=3)
    assert [len(agent.ranks) for agent in made.agents] == [3, 3, 1]
    assert len(plan(slots=5).agents[0].ranks) == 5
    with pytest.raises(UsageError, match="7 slots"):
        remote_plan(Host("here"), Host("a"), Host("b", 1), slots=3, np=8)


def test_listed_gpus_are_visible_to_the_hosts_ranks():
    made = remote_plan(Host("here", 2, gpus=("0", "2")), Host("a", 1))
    assert made.agents[0].environ["CUDA_VISIBLE_DEVICES"] == "0,2"
    assert "CUDA_VISIBLE_DEVICES" not in made.agents[1].environ


def test_more_ranks_than_listed_gpus_need_a_flag():
    crowded = Host("a", 4, gpus=("0", "2"))
    with pytest.raises(UsageError, match=r"4 ranks on a are more than its 2 GPUs 0,2: .*--share-gpus"):
        remote_plan(crowded)
    (agent,) = remote_plan(crowded, share_gpus=True).agents
    assert agent.environ["DISTRUN_SHARE_GPUS"] == "1"
    assert len(remote_plan(crowded, np=2).agents[0].ranks) == 2


@pytest.mark.parametrize(("map_by", "ranks"), [("slot", [0, 1, 2, 3, 4]), ("node", [0, 3, 1, 2, 4])])
def test_every_rank_knows_its_place(map_by, ranks):
    made = plan(hosts=(Host("a", 2), Host("b", 1), Host("c", 2)), map_by=map_by)
    places = [(0, 2, 0, 3, "a"), (1, 2, 0, 2, "a"), (0, 1, 1, 3, "b"), (0, 2, 2, 3, "c"), (1, 2, 1, 2, "c")]
    contracts = contracts_of(made)
    assert [(c.rank, c.local_rank, c.local_size, c.cross_rank, c.cross_size, c.hostname) for c in contracts] == [
        (rank, *place) for rank, place in zip(ranks, places, strict=True)
    ]
    assert {c.size for c in contracts} == {5}
    assert made.host_of(ranks[2]) == "b"


def test_the_environment_is_the_launchers_then_ours_then_the_users():
    (agent,) = plan(np=2, exports=("MASTER_PORT=1", "PYTHONUNBUFFERED=0", "A=b")).agents
    environ = {**agent.environ, **agent.ranks[1].environ}
    assert environ["PATH"] == "/bin"
    assert environ["A"] == "b"
    assert (environ["RANK"], environ["WORLD_SIZE"]) == ("1", "2")
    assert (environ["MASTER_PORT"], environ["PYTHONUNBUFFERED"]) == ("1", "0")
    assert environ["OMP_NUM_THREADS"] == "4"
    assert "OMPI_COMM_WORLD_RANK" not in environ


def test_open_mpis_names_are_set_on_request():
    assert plan(np=2, openmpi_env=True).agents[0].ranks[1].environ["OMPI_COMM_WORLD_RANK"] == "1"


@pytest.mark.parametrize(
    ("request_", "settings"),
    [
        ({}, {}),
        ({"torch_backend": True}, {"TORCH_BACKEND": "1"}),
        ({"scalars": True}, {"SCALARS": "10"}),
        (
            {"autotune": True, "autotune_log": "f", "autotune_wire_dtypes": ("bfloat16",)},
            {"AUTOTUNE": "1", "AUTOTUNE_LOG": "f", "AUTOTUNE_WIRE_DTYPES": "bfloat16"},
        ),
        (
            {"stall_warning": 0.5, "stall_timeout": 30.0, "start_timeout": 5.0, "keepalive": 0.0},
            {"STALL_WARNING": "0.5", "STALL_TIMEOUT": "30", "START_TIMEOUT": "5", "KEEPALIVE": "0"},
        ),
    ],
)
def test_settings_that_are_asked_for_reach_the_ranks_and_no_others(request_, settings):
    environ = plan(np=2, **request_).agents[0].environ
    own = {name.removeprefix("DISTRUN_"): value for name, value in environ.items() if name.startswith("DISTRUN_")}
    assert own == settings


def test_in_horovods_mode_ranks_find_its_package_and_its_variables():
    agent = plan(np=2, horovod=True).agents[0]
    assert agent.environ["DISTRUN_HOROVOD"] == "1"
    assert agent.environ["PYTHONPATH"] == horovod.FOLDER
    assert [rank.environ["HOROVOD_RANK"] for rank in agent.ranks] == ["0", "1"]
    plain = plan(np=2).agents[0]
    assert not {"DISTRUN_HOROVOD", "PYTHONPATH"} & plain.environ.keys()
    assert not any(name.startswith("HOROVOD_") for name in plain.ranks[0].environ)


def test_in_horovods_mode_a_remote_host_looks_for_the_package_itself():
    remote = replace(LAUNCHER, routes={"a": Route("a", "a")})
    agent = make_plan(LaunchRequest(("train",), hosts=(Host("a", 1),), horovod=True), remote).agents[0]
    assert agent.environ["DISTRUN_HOROVOD"] == "1"
    assert "PYTHONPATH" not in agent.environ


def test_the_thread_count_is_announced_only_when_we_choose_it():
    assert "OMP_NUM_THREADS=4 on localhost" in plan(np=2).notes[0]
    assert plan(np=2, exports=("OMP_NUM_THREADS=3",)).notes == ()


def test_standard_input_goes_to_one_rank():
    assert [rank.stdin for rank in plan(np=3, stdin=1).agents[0].ranks] == [False, True, False]
    with pytest.raises(UsageError, match="--stdin 3"):
        plan(np=3, stdin=3)


def test_tf_config_is_a_variable_whose_value_comes_when_hosts_have_answered():
    made = plan(np=3, hosts=(Host("here", 3),), tf_config=True, ps=1)
    assert [rank.environ["TF_CONFIG"] for rank in made.agents[0].ranks] == ["", "", ""]
    assert (made.agents[0].ports, made.ps, made.servers) == (3, 1, {0, 2})
    assert made.needs_host_info
    plain = plan(np=3, hosts=(Host("here", 3),))
    assert "TF_CONFIG" not in plain.agents[0].ranks[0].environ
    assert (plain.agents[0].ports, plain.ps, plain.servers) == (0, None, frozenset())


def test_parameter_servers_need_tf_config_and_company():
    with pytest.raises(UsageError, match="--ps 1 has no effect without --tf-config: give both, or neither"):
        plan(hosts=(Host("here", 3),), ps=1)
    with pytest.raises(UsageError, match="--ps 2 of 3 ranks does not leave a chief and a worker"):
        plan(hosts=(Host("here", 3),), ps=2, tf_config=True)


def test_jax_is_told_its_coordinator_and_on_request_its_place():
    environ = plan(np=1).agents[0].ranks[0].environ
    assert environ["JAX_COORDINATOR_ADDRESS"] == "127.0.0.1:4711"
    assert "OMPI_MCA_orte_hnp_uri" not in environ
    assert "OMPI_MCA_orte_hnp_uri" in plan(np=1, openmpi_env=True).agents[0].ranks[0].environ


def test_servers_are_planned_beside_the_ranks_and_hosts_take_turns():
    made = remote_plan(Host("a", 2), Host("b", 1), servers=3, server_restarts=2)
    assert made.size == 3
    assert {agent.host: [server.rank for server in agent.servers] for agent in made.agents} == {"a": [3, 5], "b": [4]}
    assert made.servers == {3, 4, 5}
    assert [made.name_of(process) for process in (2, 3, 5)] == ["rank 2", "server 0", "server 2"]
    server = made.agents[1].servers[0].environ
    assert (server["DISTRUN_SERVER"], "DISTRUN_RANK" in server) == ("1", False)
    assert made.agents[0].ranks[0].environ["DISTRUN_SERVER_RESTARTS"] == "2"
    assert "server 1\n" in describe(made, {})
    assert LAUNCHER.key not in describe(made, {})


def test_hosts_of_servers_need_no_ranks():
    made = remote_plan(Host("a", 2), servers=3, server_hosts=(Host("b"), Host("a")), tf_config=True)
    assert {agent.host: [server.rank for server in agent.servers] for agent in made.agents} == {"a": [3], "b": [2, 4]}
    assert [(agent.ranks == [], agent.ports, agent.server_ports) for agent in made.agents] == [
        (False, 2, 1),
        (True, 0, 2),
    ]
    assert ": 2 ranks on 1 host\n" in describe(made, {})
    assert made.agents[1].servers[0].environ["DISTRUN_HOSTNAME"] == "b"


def test_servers_may_move_to_a_few_hosts_and_first_to_those_without_ranks():
    hosts = [Host(f"n{number}", 1) for number in range(20)]
    made = remote_plan(*hosts, servers=3, server_hosts=(Host("a"), Host("b")), server_copies="5:/copies")
    assert made.refuges == {"a", "b", *(f"n{number}" for number in range(6))}
    assert [agent.server_ports for agent in made.agents] == [3] * 6 + [0] * 14 + [3] * 2


def test_servers_with_copies_have_a_port_where_they_may_come():
    made = remote_plan(Host("a", 2), servers=2, server_hosts=(Host("b"),), server_copies="5:/copies")
    assert [(agent.server_ports, agent.is_outlived) for agent in made.agents] == [(2, False), (2, True)]
    assert made.server_copies == "/copies/distrun-" + "0" * 16
    for process in (made.agents[1].servers[1], made.agents[0].ranks[0]):
        assert process.environ["DISTRUN_SERVER_COPIES"] == "5:" + made.server_copies


def test_ranks_of_a_job_without_servers_hear_of_none():
    assert not [
        name for agent in plan(np=2).agents for rank in agent.ranks for name in rank.environ if "SERVER" in name
    ]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("\udc80\udcff"))


def test_the_description_shows_how_hosts_are_reached():
    routes = {"a": Route("a", "a.net", jump=Route("gate", "gate"))}
    made = make_plan(LaunchRequest(("train",), hosts=(Host("a", 1),)), replace(LAUNCHER, routes=routes))
    assert "host a (a.net through gate): 1 rank" in describe(made, {})


def test_the_description_shows_everything_but_the_key():
    made = make_plan(LaunchRequest(("train",), np=2, exports=("A=b",), hosts=(Host("localhost", 4),)), LAUNCHER)
    text = describe(made, LAUNCHER.environ)
    for expected in ("2 ranks on 1 host", "command:   train", "A='b'", "rank 1(2): local 1(2)", "OMP_NUM_THREADS='4'"):
        assert expected in text
    assert LAUNCHER.key not in text
    assert "HOME" not in text


@given(
    st.builds(
        AgentPlan,
        host=TEXT,
        command=st.lists(TEXT, min_size=1),
        wdir=TEXT,
        grace=st.floats(0, 1e6),
        environ=st.dictionaries(TEXT, TEXT),
        ranks=st.lists(
            st.builds(
                RankPlan, *[st.integers(0, 1 << 20)] * 5, environ=st.dictionaries(TEXT, TEXT), stdin=st.booleans()
            )
        ),
    )
)
def test_an_agents_plan_survives_the_journey_whatever_bytes_are_in_it(agent):
    assert AgentPlan.from_json(agent.to_json()) == agent
