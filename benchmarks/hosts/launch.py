"""Launch on hosts: the time to start processes that do nothing on two hosts over SSH, and to see them end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.hosts import namespaces
from benchmarks.hosts.namespaces import ADDRESSES, DEADLINE, A, B, Host, Hosts
from benchmarks.launch import measure
from benchmarks.support import launchers, processes
from benchmarks.support.comparison import Comparison

DISTRUN, MPIRUN = "distrun", "mpirun"

_SERVER = """
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/user_key.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
SetEnv TMPDIR={tmp}
"""
_CLIENT = """
Host {names}
  User root
  IdentityFile {directory}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {directory}/known_hosts
  ConnectionAttempts 10
"""


def compare(hosts: Hosts, quick: bool, environ: Mapping[str, str]) -> Comparison:
    """Compare both launchers, from a third machine; one that is missing or fails is left out, with the reason."""
    comparison = Comparison(
        "launch over SSH, 2 hosts, 2 processes on each, wall seconds of `LAUNCHER true`",
        "command",
        [DISTRUN, MPIRUN],
        [(MPIRUN, DISTRUN)],
        notes=[f"{DISTRUN}: distrun -np 4 -H a:2,b:2; {MPIRUN}: mpirun -np 4 --host a:2,b:2; from a third machine."],
    )
    home = log_in(hosts.login, {hosts.a: ADDRESSES[A], hosts.b: ADDRESSES[B]}, hosts.work, hosts.environ)
    config = str(home / ".ssh" / "config")
    mpirun = ["--prtemca", "plm_ssh_agent", f"ssh -F {config}", "-np", "4", "--host", "a:2,b:2"]
    commands = {
        DISTRUN: lambda: (hosts.login.command(*launchers.distrun(), "-np", "4", "-H", "a:2,b:2"), 4),
        MPIRUN: lambda: (hosts.login.command(launchers.mpirun(), *mpirun), 4),
    }
    measure(comparison, commands, quick, {**environ, **hosts.environ, "HOME": str(home), "SSH_AUTH_SOCK": ""})
    return comparison


def log_in(login: Host, addresses: Mapping[Host, str], work: Path, environ: dict[str, str]) -> Path:
    """Start sshd on hosts; return a home directory from which it lets us in.

    Args:
        login: the machine from which to log in.
        addresses: the addresses of the hosts.
        work: a folder of this benchmark.
        environ: the environment of commands, with TMPDIR.
    """
    home = _home(addresses, work, environ)
    _serve(login, addresses, home / ".ssh", environ)
    return home


def _home(addresses: Mapping[Host, str], work: Path, environ: dict[str, str]) -> Path:
    """Make a home directory with keys for this benchmark only."""
    home = work / "home"
    directory = home / ".ssh"
    directory.mkdir(parents=True, mode=0o700)
    for key in ("host_key", "user_key"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / key)]
        processes.run(make, environ, DEADLINE)
    public = " ".join((directory / "host_key.pub").read_text().split()[:2])
    known = "".join(f"{host.name},{address} {public}\n" for host, address in addresses.items())
    (directory / "known_hosts").write_text(known)
    names = " ".join(host.name for host in addresses)
    (directory / "config").write_text(_CLIENT.format(names=names, directory=directory))
    return home


def _serve(login: Host, hosts: Iterable[Host], directory: Path, environ: dict[str, str]) -> None:
    """Start sshd on hosts, and wait until it lets us in."""
    (directory / "server").write_text(_SERVER.format(directory=directory, tmp=environ["TMPDIR"]))
    sshd = processes.find("sshd", "Debian's openssh-server brings it", environ["PATH"])
    for host in hosts:
        log = directory / f"{host.name}.log"
        start = f"mkdir -p /run/sshd && exec {sshd} -f {directory}/server -E {log}"
        namespaces.run(host, ["sh", "-c", start], environ, DEADLINE)
        namespaces.run(login, ["ssh", "-F", str(directory / "config"), host.name, "true"], environ, DEADLINE)
