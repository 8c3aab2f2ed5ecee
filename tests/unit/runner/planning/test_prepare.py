"""Which hosts are this machine, and how the others are reached."""

import getpass
import os
import socket

import pytest

pytest.importorskip("paramiko")

from distrun.errors import UsageError
from distrun.runner.planning.hosts import parse_host_list
from distrun.runner.planning.prepare import prepare
from distrun.runner.planning.request import LaunchRequest


@pytest.fixture(autouse=True)
def config(monkeypatch, tmp_path):
    """The user's SSH configuration."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    file = tmp_path / ".ssh" / "config"
    file.write_text(
        "Host box\n  HostName 127.0.0.1\n  Port 2222\n"
        "Host worker\n  HostName 192.0.2.1\n"
        "Host inner\n  ProxyJump worker\n"
    )
    return file


def prepared(hosts, **request):
    return prepare(LaunchRequest(("true",), hosts=tuple(parse_host_list(hosts)), **request), 5.0)


def test_all_names_of_this_machine_are_one_host_and_others_have_routes():
    plan = prepared(f"worker:1,{socket.gethostname()}:1,127.0.0.1:1,{getpass.getuser()}@localhost:2,inner:1")
    assert [(agent.host, len(agent.ranks), agent.remote) for agent in plan.agents] == [
        ("worker", 1, True),
        (socket.gethostname(), 4, False),
        ("inner", 1, True),
    ]
    assert plan.routes["inner"].jump == plan.routes["worker"]


@pytest.mark.parametrize(
    ("hosts", "server_hosts", "expected"),
    [
        ("worker:2", "inner,worker", {"worker": (2, 1), "inner": (0, 1)}),
        ("worker", "localhost", {"worker": (1, 0), "localhost": (0, 2)}),
        ("localhost:2,worker:1", socket.gethostname(), {"localhost": (2, 2), "worker": (1, 0)}),
        (None, "worker", {"localhost": (3, 0), "worker": (0, 2)}),
    ],
)
def test_hosts_of_servers_are_those_of_ranks_or_others(hosts, server_hosts, expected):
    request = LaunchRequest(
        ("true",),
        np=None if hosts else 3,
        hosts=tuple(parse_host_list(hosts) if hosts else ()),
        servers=2,
        server_hosts=tuple(parse_host_list(server_hosts)),
    )
    plan = prepare(request, 5.0)
    assert {agent.host: (len(agent.ranks), len(agent.servers)) for agent in plan.agents} == expected
    assert set(plan.routes) == {agent.host for agent in plan.agents if agent.remote} == set(expected) - {"localhost"}


def test_an_alias_of_localhost_leads_elsewhere():
    (agent,) = prepared("box:1").agents
    assert agent.remote


def test_another_account_of_this_machine_is_another_host():
    plan = prepared("nobody@localhost:1")
    assert plan.agents[0].remote
    assert plan.routes["localhost"].user == "nobody"


def test_a_host_with_two_accounts_is_refused():
    with pytest.raises(UsageError, match="'worker' is listed with two accounts"):
        prepared("me@worker:1,you@worker:1")


def test_a_directory_is_looked_for_here_only_if_ranks_run_here():
    assert prepared("worker:1", wdir="/no/such/place").agents[0].wdir == "/no/such/place"
    with pytest.raises(UsageError, match="is not a directory"):
        prepared("worker:1,localhost:1", wdir="/no/such/place")


@pytest.fixture
def in_slurm(monkeypatch, tmp_path):
    """An allocation of two nodes, and an srun on the path."""
    for name, value in {
        "JOB_ID": "7",
        "JOB_NODELIST": "n[1-2]",
        "TASKS_PER_NODE": "2(x2)",
        "CLUSTER_NAME": "c",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")


@pytest.fixture
def no_slurm(monkeypatch, tmp_path):
    """A machine without Slurm."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    (tmp_path / "true").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path))


def test_within_an_allocation_srun_starts_ranks_on_its_nodes(in_slurm):
    plan = prepare(LaunchRequest(("true",)), 5.0)
    assert plan.launcher == "srun"
    assert [(agent.host, len(agent.ranks), agent.remote) for agent in plan.agents] == [("n1", 2, True), ("n2", 2, True)]
    assert any("Slurm job 7" in note for note in plan.notes)
    assert prepared("n2:1").launcher == "srun"


def test_hosts_outside_the_allocation_are_reached_by_ssh(in_slurm):
    assert prepared("n1:1,worker:1").launcher == "ssh"
    assert prepared("n1:1,n2:1", launcher="ssh").launcher == "ssh"
    with pytest.raises(UsageError, match="--launcher srun does not reach worker: allowed are the hosts of Slurm"):
        prepared("n1:1,worker:1", launcher="srun")


def test_without_an_allocation_the_launcher_is_ssh_and_srun_is_refused(no_slurm, tmp_path):
    assert prepared("localhost:1").launcher == "ssh"
    with pytest.raises(UsageError, match="--launcher srun needs srun: put it on PATH, or use --launcher ssh"):
        prepared("localhost:1", launcher="srun")
    (tmp_path / "srun").touch(0o755)
    with pytest.raises(UsageError, match="--launcher srun needs a Slurm allocation: start distrun within salloc"):
        prepared("localhost:1", launcher="srun")


def test_a_network_that_makes_no_sense_is_refused_at_once():
    with pytest.raises(UsageError, match=r"'10\.0\.0\.0/99' is neither an interface nor a subnet"):
        prepared("localhost:1", network="10.0.0.0/99")


def test_a_setting_that_every_rank_would_refuse_is_refused_before_any_starts(monkeypatch):
    monkeypatch.setenv("DISTRUN_STALL_TIMEOUT", "never")
    with pytest.raises(UsageError, match="DISTRUN_STALL_TIMEOUT='never' is not a number >= 0"):
        prepared("localhost:1")
    assert prepared("localhost:1", stall_timeout=5.0).size == 1  # the flag takes the variable's place
    with pytest.raises(UsageError, match="DISTRUN_BACKEND='gloo' is not one of auto, shared_memory, tcp, mpi"):
        prepared("localhost:1", stall_timeout=5.0, exports=("DISTRUN_BACKEND=gloo",))


def test_a_backend_that_does_not_fit_the_number_of_hosts_is_refused_before_any_rank_starts(monkeypatch):
    monkeypatch.setenv("DISTRUN_BACKEND", "tcp")
    with pytest.raises(UsageError, match="DISTRUN_BACKEND='tcp' does not connect the ranks of one host: use auto"):
        prepared("localhost:2")
    assert prepared("localhost:1").size == 1  # a single rank needs none
    assert prepared("localhost:1,worker:1").size == 2
    with pytest.raises(UsageError, match="DISTRUN_BACKEND='shared_memory' does not connect several hosts: use auto"):
        prepared("localhost:1,worker:1", exports=("DISTRUN_BACKEND=shared_memory",))


def test_misspelt_settings_are_warned_of_once_whether_inherited_or_exported(monkeypatch):
    monkeypatch.setenv("DISTRUN_NETWROK", "eth1")
    assert prepared("localhost:1,worker:1", exports=("DISTRUN_FOO=1",)).warnings == (
        "DISTRUN_FOO is not a setting of distrun and changes nothing: docs/settings.md lists those that exist",
        "DISTRUN_NETWROK is not a setting of distrun and changes nothing: did you mean DISTRUN_NETWORK?",
    )


def test_variables_of_the_launch_contract_are_no_misspelt_settings():
    assert prepared("localhost:2").warnings == ()


def test_a_torch_that_loads_no_backends_is_refused_together_with_torch_backend(monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    prepared("127.0.0.1:2")
    prepared("127.0.0.1:2", torch_backend=True, exports=("TORCH_DEVICE_BACKEND_AUTOLOAD=1",))
    refusal = (
        r"TORCH_DEVICE_BACKEND_AUTOLOAD='0' keeps torch from loading distrun's backend, and --torch-backend "
        r"\(DISTRUN_TORCH_BACKEND=1\) needs it: unset it, or give -x TORCH_DEVICE_BACKEND_AUTOLOAD=1"
    )
    with pytest.raises(UsageError, match=refusal):
        prepared("127.0.0.1:2", torch_backend=True)
    monkeypatch.setenv("DISTRUN_TORCH_BACKEND", "1")
    with pytest.raises(UsageError, match=refusal):
        prepared("127.0.0.1:2")
