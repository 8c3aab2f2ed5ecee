"""Hosts with nothing but Python: namespaces that see neither this checkout nor its environment, with homes of their
own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from machines.namespaces import Home, Network, RemoteHost
from machines.system_packages import call

import distrun as package

CHECKOUT = Path(__file__).resolve().parents[3]
_HIDDEN = sorted({str(CHECKOUT), str(Path(package.__file__).resolve().parents[1])})


class BareHost(RemoteHost):
    """A host whose logins have a home of their own, and see nothing of this checkout."""

    def _start_sshd(self) -> None:
        self.home = self._directory / f"{self.name}_home"
        self.home.mkdir()
        super()._start_sshd()

    def _script(self, script: str) -> str:
        hide = [f"mount -t tmpfs -o size=64k none {shlex.quote(path)}" for path in _HIDDEN]
        home = shlex.quote(os.path.expanduser("~root"))
        return " && ".join([*hide, f"mount --bind {shlex.quote(str(self.home))} {home}", script])

    @property
    def cache(self) -> Path:
        """The cache of its user."""
        return self.home / ".cache" / "distrun"

    def enter(self, *command: str) -> int:
        """Run a command among the host's mounts; return its exit status."""
        (sshd,) = (
            pid
            for pid in call("ip", "netns", "pids", self.namespace).split()
            if psutil.Process(int(pid)).name() == "sshd" and "listener" in " ".join(psutil.Process(int(pid)).cmdline())
        )
        return subprocess.run(["nsenter", "--mount", "--target", sshd, *command], check=False, timeout=60).returncode


@pytest.fixture(scope="session")
def bare_hosts(network: Network) -> Iterator[dict[str, BareHost]]:
    """Two bare hosts, gamma and delta."""
    try:
        call("unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt")
    except RuntimeError as error:
        pytest.skip(f"hosts cannot have mounts of their own here: {error}")
    made: dict[str, BareHost] = {}
    for number, name in enumerate(("gamma", "delta"), start=20):
        made[name] = BareHost(name, network.directory, network.bridge, int(network.bridge[2:]), number)
        network.hosts[name] = made[name]
    yield made
    for host in made.values():
        del network.hosts[host.name]
        host.destroy()


@pytest.fixture
def gamma(bare_hosts: dict[str, BareHost], home: Home, network: Network) -> BareHost:
    """A bare host with an empty home."""
    return _fresh(bare_hosts["gamma"], home, network)


@pytest.fixture
def delta(bare_hosts: dict[str, BareHost], home: Home, network: Network) -> BareHost:
    """Another one."""
    return _fresh(bare_hosts["delta"], home, network)


def _fresh(host: BareHost, home: Home, network: Network) -> BareHost:
    for left in host.home.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    home.know(network.hosts.values())
    return host


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of a user's, with a script and a module."""
    folder = tmp_path / "project"
    (folder / "models").mkdir(parents=True)
    (folder / "train.py").write_text(
        "import os, sys\nfrom models import net\nprint('net', net.NAME, 'rank', os.environ['RANK'], 'of', "
        "os.environ['WORLD_SIZE'], 'in', os.getcwd(), *sys.argv[1:])\n"
    )
    (folder / "models" / "net.py").write_text("NAME = 'first'\n")
    (folder / ".gitignore").write_text("*.secret\ndata/\n")
    (folder / "key.secret").write_text("hidden")
    (folder / "data").mkdir()
    (folder / "data" / "large").write_text("large")
    return folder
