"""Which hosts are this machine, and how the others are reached."""

from __future__ import annotations

import getpass
import socket

import pytest

pytest.importorskip("paramiko")

from distrun.errors import UsageError
from distrun.runner.hosts import parse_host_list
from distrun.runner.launch import prepare
from distrun.runner.plan import LaunchRequest


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
