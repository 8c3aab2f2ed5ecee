"""Hosts made of namespaces: two of them on a network of their own, with a third machine to start things from.

Nothing of it has a name outside: network, processes, shared memory and temporary files are gone as soon as the processes that
hold the namespaces are, and those are gone when the benchmark is, even if it was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import processes
import psutil

DESK, A, B = "desk", "a", "b"
ADDRESSES = {DESK: "10.231.0.1", A: "10.231.0.2", B: "10.231.0.3"}
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
    """Why there can be no such hosts here."""
    if os.geteuid() != 0:
        return "hosts made of namespaces need root"
    packages = {package for tool, package in _TOOLS.items() if shutil.which(tool, path=_PATH) is None}
    return f"{', '.join(sorted(packages))} must be installed" if packages else None


@dataclass(frozen=True)
class ConnectionSet:
    """What connects the hosts."""

    label: str
    rate: float | None = None
    """Bits per second and direction, counted with Ethernet's headers; None: what the machine can do."""
    mtu: int = 1500

    @property
    def burst(self) -> int:
        """Bytes that may pass faster after a silence: as much as passes in 0.13 ms, for timers are not exact."""
        return int((self.rate or 0) / 8 * 0.13e-3)


@dataclass(frozen=True)
class Host:
    """One host: the namespaces of the process `pid`."""

    name: str
    pid: int

    def command(self, *command: str) -> list[str]:
        """The command line that runs a command on the host. Processes of A and B are numbered apart from all others."""
        own_pids = ["--pid"] if self.name != DESK else []
        return ["nsenter", f"--target={self.pid}", *_NAMESPACES, *own_pids, *command]


class HostLayout:
    """The desk, A and B, connected by a bridge. Made by `hosts`."""

    def __init__(self, desk: Host, a: Host, b: Host, work: Path) -> None:
        self.desk, self.a, self.b = desk, a, b
        self.work = work
        self.environ = {**os.environ, "PATH": _PATH, "TMPDIR": str(work / "tmp")}
        """For commands on any of them."""
        self.remote_shell = work / "remote-shell"
        """A program for the desk, called like ssh, with a host and a command."""
        self.remote_shell.write_text(
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\ncase $host in\n'
            + "".join(f'{host.name}) exec {" ".join(host.command("sh", "-c"))} "$*";;\n' for host in (a, b))
            + 'esac\necho "there is no host $host" >&2; exit 1\n'
        )
        self.remote_shell.chmod(0o700)

    def connect(self, wire: ConnectionSet) -> None:
        """Plug in the network."""
        self._network(self.desk, f"ip link add name lan mtu {wire.mtu} type bridge")
        self._network(self.desk, "ip link set dev lan up")
        self._network(self.desk, f"ip address add {ADDRESSES[DESK]}/24 dev lan")
        for host in (self.a, self.b):
            port = f"port-{host.name}"
            end = f"mtu {wire.mtu} netns {host.pid}"
            self._network(self.desk, f"ip link add name {port} mtu {wire.mtu} type veth peer name {INTERFACE} {end}")
            self._network(self.desk, f"ip link set dev {port} master lan up")
            self._network(host, f"ip address add {ADDRESSES[host.name]}/24 dev {INTERFACE}")
            self._network(host, f"ip link set dev {INTERFACE} up")
            # What Linux does unless told otherwise, whatever this machine was told.
            self._network(host, f"ip route replace 10.231.0.0/24 dev {INTERFACE} congctl cubic")
            if wire.rate is not None:
                limit = f"rate {wire.rate:.0f}bit burst {wire.burst} cburst {wire.burst} quantum 60000"
                # htb lets a whole packet pass on the last token, and one on its way to be segmented may have 64 KiB.
                self._network(host, f"ip link set dev {INTERFACE} gso_max_size {min(wire.burst, 65536)}")
                self._network(host, f"tc qdisc add dev {INTERFACE} root handle 1: htb default 1")
                self._network(host, f"tc class add dev {INTERFACE} parent 1: classid 1:1 htb {limit}")

    def _network(self, host: Host, command: str) -> None:
        """Run a command in the host's network, but among all processes, so that it may name another host's."""
        processes.run(["nsenter", f"--target={host.pid}", "--net", *command.split()], self.environ, DEADLINE)


@contextlib.contextmanager
def hosts(work: Path, wire: ConnectionSet) -> Iterator[HostLayout]:
    """Hosts connected by `wire`; files of theirs go to the empty directory `work`. They are gone afterwards.

    Raises:
        processes.ProcessError: they cannot be made here.
    """
    (work / "tmp").mkdir(parents=True)
    (work / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    )
    with _hold(DESK, work) as desk, _hold(A, work) as a, _hold(B, work) as b:
        made = HostLayout(desk, a, b, work)
        made.connect(wire)
        yield made


@contextlib.contextmanager
def _hold(name: str, work: Path) -> Iterator[Host]:
    """A process that keeps a host's namespaces. A and B have processes of their own, which end with their first one."""
    pids = ["--pid", "--fork", "--kill-child", "--mount-proc"] if name != DESK else []
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
    """In the child: SIGKILL, since unshare ignores requests to end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(host: Host, command: Sequence[str], environ: dict[str, str], deadline: float) -> processes.Finished:
    """Run a command on a host to its end; see `processes.run`."""
    return processes.run(host.command(*command), environ, deadline)
