"""Hosts made of namespaces: two of them on a network of their own, with a third machine to start things from.

Nothing of it has a name outside: network, processes, shared memory and temporary files are gone as soon as the
processes that hold the namespaces are, and those are gone when the benchmark is, even if it was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.support import processes

LOGIN, A, B = "login", "a", "b"
ADDRESSES = {LOGIN: "10.231.0.1", A: "10.231.0.2", B: "10.231.0.3"}
INTERFACE = "eth0"
DEADLINE = 20.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PATH = "/usr/sbin:/sbin:" + os.environ.get("PATH", os.defpath)
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_NAMESPACES = ("--net", "--uts", "--mount")
_HOLD = """
mount --bind {hosts} /etc/hosts && mount -t tmpfs tmpfs {tmp} && mount -t tmpfs tmpfs /dev/shm &&
mount -t tmpfs tmpfs /run && hostname {name} && ip link set dev lo up && echo ready && exec sleep infinity
"""


def missing() -> str | None:
    """Return why there can be no such hosts here, or None."""
    if os.geteuid() != 0:
        return "hosts made of namespaces need root"
    packages = {package for tool, package in _TOOLS.items() if shutil.which(tool, path=_PATH) is None}
    return f"{', '.join(sorted(packages))} must be installed" if packages else None


@dataclass(frozen=True)
class Link:
    """The properties of the network between the hosts."""

    label: str
    rate: float | None = None
    """Bits per second and direction, counted with Ethernet's headers; None: no limit."""
    mtu: int = 1500
    least_burst: int = 0
    """The bytes that may pass at once in any case. Packets of 64 KiB cost the processors least."""

    @property
    def burst(self) -> int:
        """The bytes that may pass faster after a pause: as many as pass in 0.13 ms, for timers are not exact."""
        return max(int((self.rate or 0) / 8 * 0.13e-3), self.least_burst)


@dataclass(frozen=True)
class Host:
    """One host: the namespaces of the process `pid`."""

    name: str
    pid: int

    def command(self, *command: str) -> list[str]:
        """Return the command line that runs a command on the host. A and B have process ids of their own."""
        own_pids = ["--pid"] if self.name != LOGIN else []
        return ["nsenter", f"--target={self.pid}", *_NAMESPACES, *own_pids, *command]


class Hosts:
    """The login machine, A and B, connected by a bridge. Made by `hosts`."""

    def __init__(self, login: Host, a: Host, b: Host, work: Path) -> None:
        self.login, self.a, self.b = login, a, b
        self.work = work
        self.environ = {**os.environ, "PATH": _PATH, "TMPDIR": str(work / "tmp")}
        """The environment for commands on any of them."""
        self.remote_shell = work / "remote-shell"
        """A program for the login machine, called like ssh, with a host and a command."""
        self.remote_shell.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\ncase $host in\n'
            + "".join(f'{host.name}) exec {" ".join(host.command("sh", "-c"))} "$*";;\n' for host in (a, b))
            + 'esac\necho "there is no host $host" >&2; exit 1\n'
        )
        self.remote_shell.chmod(0o700)

    def connect(self, link: Link) -> None:
        """Connect the hosts by a network."""
        make_switch(self.login, link)
        network_command(self.login, f"ip address add {ADDRESSES[LOGIN]}/24 dev lan")
        for host in (self.a, self.b):
            attach(self.login, host, f"{ADDRESSES[host.name]}/24", link)


def make_switch(at: Host, link: Link) -> None:
    """Make a bridge in the network of a host, which becomes the switch."""
    network_command(at, f"ip link add name lan mtu {link.mtu} type bridge")
    network_command(at, "ip link set dev lan up")


def attach(switch: Host, host: Host, address: str, link: Link) -> None:
    """Connect a host to a switch by a link, and give it an address such as 10.231.0.2/24."""
    port = f"port-{host.name}"
    end = f"mtu {link.mtu} netns {host.pid}"
    network_command(switch, f"ip link add name {port} mtu {link.mtu} type veth peer name {INTERFACE} {end}")
    network_command(switch, f"ip link set dev {port} master lan up")
    network_command(host, f"ip address add {address} dev {INTERFACE}")
    network_command(host, f"ip link set dev {INTERFACE} up")
    # What Linux does unless told otherwise, whatever this machine was told.
    subnet = ipaddress.ip_interface(address).network
    network_command(host, f"ip route replace {subnet} dev {INTERFACE} congctl cubic")
    if link.rate is not None:
        limit = f"rate {link.rate:.0f}bit burst {link.burst} cburst {link.burst} quantum 60000"
        # htb lets a whole packet pass on the last token, and one on its way to be segmented may have 64 KiB.
        network_command(host, f"ip link set dev {INTERFACE} gso_max_size {min(link.burst, 65536)}")
        network_command(host, f"tc qdisc add dev {INTERFACE} root handle 1: htb default 1")
        network_command(host, f"tc class add dev {INTERFACE} parent 1: classid 1:1 htb {limit}")


def network_command(host: Host, command: str) -> None:
    """Run a command in the host's network namespace, but with all processes visible: it may name another host's."""
    environ = {**os.environ, "PATH": _PATH}
    processes.run(["nsenter", f"--target={host.pid}", "--net", *command.split()], environ, DEADLINE)


@contextlib.contextmanager
def hosts(work: Path, link: Link) -> Iterator[Hosts]:
    """Make hosts connected by `link` for as long as the context lasts; their files go to the empty directory `work`.

    Raises:
        processes.ProcessError: they cannot be made here.
    """
    (work / "tmp").mkdir(parents=True)
    (work / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    )
    with hold(LOGIN, work) as login, hold(A, work) as a, hold(B, work) as b:
        made = Hosts(login, a, b, work)
        made.connect(link)
        yield made


@contextlib.contextmanager
def hold(name: str, work: Path) -> Iterator[Host]:
    """Start a process that keeps a host's namespaces; all of its processes end with it.

    All but the login machine have process ids of their own. `work` has an empty folder `tmp` and the file `hosts`,
    which becomes /etc/hosts.
    """
    pids = ["--pid", "--fork", "--kill-child", "--mount-proc"] if name != LOGIN else []
    script = _HOLD.format(hosts=work / "hosts", tmp=work / "tmp", name=name)
    with subprocess.Popen(
        ["unshare", *_NAMESPACES, *pids, "sh", "-c", script],
        env={**os.environ, "PATH": _PATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_die_with_parent,
    ) as holder:
        try:
            assert holder.stdout is not None
            if (line := holder.stdout.readline()) != "ready\n":
                raise processes.ProcessError(f"host {name} cannot be made here: {line.strip()}")
            yield Host(name, psutil.Process(holder.pid).children()[0].pid if pids else holder.pid)
        finally:
            _end(holder)


def _end(holder: subprocess.Popen[str]) -> None:
    """End a host. When its first process is gone, so are all its others; `unshare` then ends by itself."""
    for first in psutil.Process(holder.pid).children() or [psutil.Process(holder.pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            first.kill()
    holder.wait()


def _die_with_parent() -> None:
    """Have the kernel kill this child when its parent is gone: unshare ignores SIGTERM."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(host: Host, command: Sequence[str], environ: dict[str, str], deadline: float) -> processes.Finished:
    """Run a command on a host to its end; see `processes.run`."""
    return processes.run(host.command(*command), environ, deadline)
