"""Other hosts, for tests: network namespaces with a hostname, an address and a real sshd each, all on one bridge.

Only these namespaces are talked to. They share this machine's files and process numbers, so that a test can look at
"remote" processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from machines.system_packages import PATH, call, why_missing
from running_distrun import DEADLINE
from shell import wait_until

_PACKAGES = {
    **{"sshd": "openssh-server", "ssh-keygen": "openssh-client", "ip": "iproute2", "unshare": "util-linux"},
    "iptables": "iptables",
}
_MEASURED = "COVERAGE_PROCESS_CONFIG"  # by which scripts/coverage measures processes of hosts, too
# A login that runs pyenv would wait a minute for a lock that another one has left, which a test has killed.
_SSHD = """
SetEnv PYENV_REHASH_TIMEOUT=0{measured}
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


def make_key(file: Path) -> Path:
    """Make a new pair of keys; return the file of the public one."""
    file.unlink(missing_ok=True)
    call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file))
    return file.with_name(file.name + ".pub")


def command_line(process: psutil.Process) -> list[str]:
    """Return the words of a process; none if it has ended meanwhile, as logins do now and then."""
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
        self.inside = ("ip", "netns", "exec", f"{bridge}{name}")
        """The words before a command that make it run in the namespace."""
        self.link = f"{bridge}-{number}"  # dr12 and its third host are not dr123
        """This machine's end of its cable."""
        self.namespace = f"{bridge}{name}"
        self._directory = directory
        self._bridge = bridge
        # Others remember the address of a host that is made again, and would ask for a new one only after a minute.
        self._hardware_address = f"02:00:0a:e7:{subnet:02x}:{number:02x}"
        try:
            self._build()
            self._start_sshd()
        except BaseException:
            self.destroy()
            raise

    def _build(self) -> None:
        call("ip", "netns", "add", self.namespace)
        peer = ("name", "eth0", "address", self._hardware_address, "netns", self.namespace)
        call("ip", "link", "add", self.link, "type", "veth", "peer", *peer)
        call("ip", "link", "set", self.link, "master", self._bridge, "up")
        self.call("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.call("ip", "address", "add", f"{self.address6}/64", "dev", "eth0", "nodad", check=False)
        self.call("ip", "link", "set", "lo", "up")
        self.call("ip", "link", "set", "eth0", "up")
        make_key(self.key)

    def _start_sshd(self) -> None:
        config = self._directory / f"{self.name}_sshd_config"
        config.write_text(
            _SSHD.format(
                measured="".join(f" {name}={value}" for name, value in os.environ.items() if name == _MEASURED),
                port=self.port,
                key=self.key,
                authorized=self._directory / "authorized_keys",
            )
        )
        sshd = shutil.which("sshd", path=PATH)
        log = self._directory / f"{self.name}.log"
        script = f"hostname {self.name} && exec {sshd} -f {config} -E {log}"  # it daemonises: no child of the tests
        clock = ("--time", "--monotonic", str(self.ahead), "--fork") if self.ahead else ()
        unshare = ("unshare", "--uts", "--mount", *clock)
        self.call(*unshare, "sh", "-c", self._script(script))
        wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            socket.create_connection((self.address, self.port), 1).close()
        except OSError:
            return False
        return True

    def _script(self, script: str) -> str:
        """Return what the shell of the host does, which starts its sshd in the end."""
        return script

    def call(self, *command: str, check: bool = True) -> str:
        """Run a program of the system in the namespace; return what it prints."""
        return call(*self.inside, *command, check=check)

    def cut(self) -> None:
        """Drop all packets silently."""
        call("ip", "link", "set", self.link, "down")

    def mend(self) -> None:
        """Undo `cut`."""
        call("ip", "link", "set", self.link, "up")

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Drop all packets silently within this context."""
        self.cut()
        try:
            yield
        finally:
            self.mend()

    def processes(self) -> list[psutil.Process]:
        """Return the living processes of the host besides its sshd."""
        found = []
        for pid in call("ip", "netns", "pids", self.namespace).split():
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

    def assert_gone(self) -> None:
        """Wait until nothing is left on the host."""
        while left := self.processes():  # more than once: programs that look after others may start meanwhile
            assert psutil.wait_procs(left, timeout=DEADLINE)[1] == []

    def public_key(self) -> str:
        return " ".join(self.key.with_name(self.key.name + ".pub").read_text().split()[:2])

    def known(self) -> str:
        """Return the host's line in known_hosts."""
        name = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{name} {self.public_key()}\n"

    def destroy(self) -> None:
        """Remove everything."""
        for pid in call("ip", "netns", "pids", self.namespace, check=False).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        call("ip", "netns", "del", self.namespace, check=False)
        call("ip", "link", "del", self.link, check=False)


def why_no_hosts() -> str | None:
    """Return why there can be no hosts here, or None."""
    return "hosts of namespaces need root" if os.geteuid() != 0 else why_missing(_PACKAGES)


def _make_bridge() -> int:
    """Make a bridge whose number no other network of this machine has; return the number."""
    for step in range(249):
        number = 1 + (os.getpid() + step) % 249
        try:
            call("ip", "link", "add", f"dr{number}", "type", "bridge")
        except RuntimeError as error:  # the kernel refuses one of two sessions that ask at the same moment
            if "File exists" not in str(error):
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
