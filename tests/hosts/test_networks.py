"""The rendezvous of ranks on several hosts, and the network that they use."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest
from machines.system_packages import call

STAYS = str(Path(__file__).parents[1] / "parallel" / "programs" / "stays.py")

MEET = """
import json, os, socket, sys
place, _, port = os.environ["DISTRUN_RENDEZVOUS"].split(",")[0].rpartition(":")
place = (place.strip("[]"), int(port))
if os.environ["RANK"] == "0":
    family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
    server = socket.create_server(place, family=family, reuse_port=True)
    open(sys.argv[1], "w").close()
    server.accept()[0].sendall(b"hello")
else:
    open(sys.argv[1]).read()  # until rank 0 listens; the hosts share their files
    assert socket.create_connection(place, 10).recv(100) == b"hello"
names = "DISTRUN_RENDEZVOUS", "MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "DISTRUN_NETWORK"
print(json.dumps([os.environ.get(name) for name in names]))
"""


@pytest.fixture
def meet(python, tmp_path):
    """Return the command of ranks that join the rendezvous and print what they were told of it."""
    os.mkfifo(tmp_path / "listening")
    return [*python(MEET), str(tmp_path / "listening")]


def met(job):
    """Return what the ranks were told, the same for all except for the names of interfaces."""
    assert job.wait() == 0, job.stderr.data
    lines = [json.loads(line) for line in job.stdout.data.splitlines()]
    assert len(lines) == 2
    return lines


@pytest.mark.parametrize("hosts", ["localhost:1,beta:1", "beta:1,localhost:1"])
def test_rank_0_can_be_called_on_the_port_that_is_kept_for_it(distrun, meet, network, beta, hosts):
    first = {"beta": beta, "localhost": network}[hosts.partition(":")[0]].address
    lines = met(distrun("-H", hosts, "--no-tag-output", *meet))
    assert {line[1] for line in lines} == {first}
    (rendezvous,) = {line[0] for line in lines}
    assert rendezvous.startswith(f"{first}:")
    port = int(rendezvous.split(",")[0].rpartition(":")[2])
    assert socket.socket().connect_ex((first, port)) != 0
    for line in lines:
        assert line[2] in ("eth0", network.bridge)
        assert line[3] is None


@pytest.mark.gate
def test_the_network_can_be_chosen(distrun, meet, alpha):
    subnet = alpha.address6.replace("::2", "::") + "/64"
    lines = met(distrun("-H", "alpha:1,beta:1", "--network", subnet, "--no-tag-output", *meet))
    assert {line[0].rpartition(":")[0] for line in lines} == {f"[{alpha.address6}]"}
    assert [line[1:] for line in lines] == [[alpha.address6, "eth0", "=eth0", subnet]] * 2


def test_a_network_that_is_not_there_starts_nothing(distrun, alpha):
    said = distrun("-H", "alpha:1,beta:1", "--network", "ib0", "touch", "/nowhere").ended(2).decode()
    assert "--network 'ib0' allows no interface of host 'alpha'" in said
    assert alpha.address in said
    assert "Traceback" not in said


def test_what_the_user_exports_wins_over_our_guess(output):
    printed = output(
        *("-H", "alpha:1,beta:1", "-x", "GLOO_SOCKET_IFNAME=mine", "--no-tag-output"),
        *("sh", "-c", "echo $GLOO_SOCKET_IFNAME"),
    )
    assert printed == b"mine\nmine\n"


@pytest.mark.gate
def test_ranks_on_other_hosts_listen_at_the_ports_that_are_allowed(distrun, alpha, beta):
    job = distrun("-H", "alpha:2,beta:2", "--ports", "31000-31019", sys.executable, STAYS)
    job.stdout.wait_for(b"sum 4 of 4", 4)
    found = [item for host in (alpha, beta) for process in host.processes() for item in process.net_connections("inet")]
    ports = {item.laddr.port for item in found if item.status == psutil.CONN_LISTEN}
    assert ports <= set(range(31000, 31020)), ports
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130


def test_a_host_without_a_free_port_is_refused_with_the_range(distrun):
    said = distrun("-H", "alpha:1", "--ports", "31000-31000", "touch", "/nowhere").ended(2)
    assert b"no port of 31000-31000 is free on alpha: allow more with --ports" in said


SPREAD = """
import numpy, distrun
from distrun.runtime.world import world
distrun.init()
assert (distrun.allreduce(numpy.full(1_000_000, distrun.rank()), op=distrun.Sum) == 6).all()
backend = world.engine().backend
(stream,) = backend._links._streams.values()
distrun.add_process_set([1, 3])
print(distrun.local_rank(), *sorted({stream.socket.getsockname()[0], stream.socket.getpeername()[0]}), flush=True)
distrun.barrier()  # a rank that has left takes its connection along
"""


@pytest.mark.gate
def test_rails_are_spread_over_the_networks_that_are_named(distrun, output, python, network, alpha, beta):
    """Two hosts with two networks each, that is two bridges: the second rank of each host uses the second network."""
    hosts = (alpha, beta)
    bridge = f"{network.bridge}b"
    call("ip", "link", "add", bridge, "type", "bridge")
    try:
        call("ip", "link", "set", bridge, "up")
        for number, host in enumerate(hosts):
            peer = ("type", "veth", "peer", "name", "eth1", "netns", host.namespace)
            call("ip", "link", "add", f"{bridge}{number}", *peer)
            call("ip", "link", "set", f"{bridge}{number}", "master", bridge, "up")
            host.call("ip", "address", "add", f"10.232.1.{number + 1}/24", "dev", "eth1")
            host.call("ip", "link", "set", "eth1", "up")
        for networks, lines in (
            ("eth0,eth1", {f"0 {alpha.address} {beta.address}", "1 10.232.1.1 10.232.1.2"}),
            ("eth0", {f"{rank} {alpha.address} {beta.address}" for rank in (0, 1)}),
        ):
            printed = output("-H", "alpha:2,beta:2", "--network", networks, "--no-tag-output", *python(SPREAD))
            assert set(printed.decode().splitlines()) == lines
    finally:
        for number in range(len(hosts)):
            call("ip", "link", "del", f"{bridge}{number}", check=False)  # both ends
        call("ip", "link", "del", bridge, check=False)


ADDRESSES = """
from distrun.host.endpoints import reserve_port
from distrun.runner.protocol.handshake import Greeting, describe_host
with reserve_port() as reservation:
    print(*(interface.address for interface in describe_host(Greeting(0.0, "/"), reservation).addresses))
"""


@pytest.mark.gate
def test_an_agent_that_starts_during_a_cut_names_its_addresses(network, alpha):
    agent = (sys.executable, "-c", ADDRESSES)
    alpha.cut()
    try:
        assert alpha.address in alpha.call(*agent).split(), "eth0 has no carrier"
        alpha.call("ip", "link", "set", "eth0", "down")
        assert alpha.call(*agent).split() == []
        came_by = f"SSH_CONNECTION={network.address} 41002 {alpha.address} {alpha.port}"
        assert alpha.call("env", came_by, *agent).split() == [alpha.address]
    finally:
        alpha.call("ip", "link", "set", "eth0", "up")
        alpha.call("ip", "address", "add", f"{alpha.address6}/64", "dev", "eth0", "nodad", check=False)
        alpha.mend()
