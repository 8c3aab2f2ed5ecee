"""Pods, for tests: network, process, host name and mount namespaces, with an address and a hosts file of their own.

No control plane is to be had, so what it does (names, addresses, variables, signals) is done here. A pod's process has
process id 1, an unprivileged user and no capability, as a container that a strict cluster starts.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test
_PATH = "/usr/sbin:/sbin:" + os.environ.get("PATH", os.defpath)
_NOBODY = "65534"
_TOOLS = ("ip", "unshare", "setpriv", "mount")
_CONTAINER = """
set -e
hostname "$1"
mount --make-rprivate /
mount --bind "$2" /etc/hosts
ip link set lo up
shift 2
{image}
{volumes}
exec setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def _image(stash: Path) -> str:
    """Return what makes this Python and the package readable to everybody in a pod, where only their owner may pass."""
    root = Path(__file__).resolve().parents[3]
    needed = {Path(path).resolve() for path in (sys.base_prefix, sys.prefix, root)}
    closed = {
        next((d for d in (*reversed(path.parents), path) if not d.stat().st_mode & 0o001), None) for path in needed
    }
    lines = []
    for folder in sorted(closed - {None}):
        inside = sorted(path for path in needed if path.is_relative_to(folder))
        for number, path in enumerate(inside):
            lines.append(f"mkdir -p {stash}/{number} && mount --bind {path} {stash}/{number}")
        lines.append(f"mount -t tmpfs -o mode=0755 none {folder}")
        for number, path in enumerate(inside):
            lines.append(f"mkdir -p {path} && mount --bind {stash}/{number} {path}")
    return "\n".join(lines)


def _volumes(volumes: dict[str, Path]) -> str:
    """Return what mounts folders of this machine in a pod, /tmp the last, as the others are there."""
    lines = ["mount -t tmpfs -o mode=0755 none /mnt"] if volumes else []
    for place in sorted(volumes, key=lambda place: (place == "/tmp", place)):
        lines.append(f"mkdir -p {place} && mount --bind {volumes[place]} {place}")
        if place != "/tmp":
            lines.append(f"mount -o remount,bind,ro {place}")
    return "\n".join([*lines, "cd /"] if volumes else [])


def call(*command: str, check: bool = True) -> None:
    """Run a command of the system."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": _PATH})
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")


class Pod:
    """A pod and its process, until it is deleted."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        address: str,
        environ: dict[str, str],
        command: list[str],
        volumes: dict[str, Path],
    ) -> None:
        self.name = name
        self.address = address
        self._namespace = f"{cluster.bridge}p{address.rpartition('.')[2]}"
        self._link = f"{cluster.bridge}v{address.rpartition('.')[2]}"
        self._log = cluster.folder / f"{name}.{address}.log"
        call("ip", "netns", "add", self._namespace)
        call("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
        call("ip", "link", "set", self._link, "master", cluster.bridge, "up")
        call("ip", "-n", self._namespace, "address", "add", f"{address}/24", "dev", "eth0")
        call("ip", "-n", self._namespace, "link", "set", "eth0", "up")
        script = _CONTAINER.replace("{image}", _image(cluster.folder / "stash"))
        script = script.replace("{volumes}", _volumes(volumes))
        self.names = cluster.folder / f"{name}.{address}.hosts"
        self.names.write_text("")
        container = ["sh", "-c", script, "container", name, str(self.names), *command]
        spaces = ["unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self._namespace, *spaces, *container],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=cluster.folder,
                env={"PATH": _PATH, "TEST_SESSION": os.environ["TEST_SESSION"], "TMPDIR": cluster.tmp, **environ},
            )

    def main(self) -> psutil.Process:
        """Return the process with process id 1 in the pod, which is the container's command when it runs."""
        return next(iter(psutil.Process(self._process.pid).children()))

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the container."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def find(self, words: str) -> psutil.Process:
        """Return the only process whose command line contains these words."""
        (found,) = (process for process in self.processes()[1:] if words in " ".join(process.cmdline()))
        return found

    @property
    def log(self) -> str:
        """All that its process has written, as `kubectl logs` shows it."""
        return self._log.read_text(errors="replace")

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until the log has a text so many times."""
        deadline = time.monotonic() + DEADLINE
        while self.log.count(text) < count:
            assert self._process.poll() is None or self.log.count(text) >= count, self.log
            assert time.monotonic() < deadline, f"{text!r} is not in {self.log}"
            time.sleep(0.01)  # a file has no event for what is appended

    def wait(self) -> int:
        """Wait for its end; returns the exit status. Nothing of it is left then: the kernel ends its processes."""
        try:
            return self._process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended: {self.log}") from None

    def evict(self) -> int:
        """Delete it as an eviction does: SIGTERM to its process; returns the exit status."""
        self.main().send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it as a node that fails does, without a word, its network first."""
        self.cut()
        self.main().kill()
        self.wait()

    def cut(self) -> None:
        """Drop all packets from now on, silently."""
        call("ip", "link", "set", self._link, "down")

    def delete(self) -> None:
        """Remove everything."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(DEADLINE)
        call("ip", "netns", "del", self._namespace, check=False)
        call("ip", "link", "del", self._link, check=False)


class Cluster:
    """A bridge that all pods are on, the hosts file that is their name server, and the folder that is their image."""

    def __init__(self) -> None:
        number = 1 + os.getpid() % 249
        self.bridge = f"dk{number}"
        self.subnet = f"10.233.{number}"
        self.folder = Path(tempfile.mkdtemp(prefix="distrun-pods-"))
        self.folder.chmod(0o755)
        self._names: dict[str, str] = {}
        self.tmp = str(self.folder / "tmp")
        Path(self.tmp).mkdir(mode=0o777)
        Path(self.tmp).chmod(0o1777)
        self._pods: list[Pod] = []
        call("ip", "link", "add", self.bridge, "type", "bridge")
        call("ip", "address", "add", f"{self.subnet}.1/24", "dev", self.bridge)
        call("ip", "link", "set", self.bridge, "up")

    def start(
        self,
        index: int,
        *command: str,
        job: str = "train",
        named: bool = True,
        volumes: dict[str, Path] | None = None,
        **environ: str,
    ) -> Pod:
        """Start the pod with this index of an indexed job, as a new one with a new address."""
        address = f"{self.subnet}.{2 + len(self._pods)}"
        name = f"{job}-{index}"
        variables = {"JOB_COMPLETION_INDEX": str(index), "KUBERNETES_SERVICE_HOST": "10.96.0.1", **environ}
        pod = Pod(self, name, address, variables, list(command), volumes or {})
        self._pods.append(pod)
        if named:
            self._names[f"{name}.{job}"] = address
        self._tell()
        return pod

    def publish(self, pod: Pod, service: str = "train") -> None:
        """Have a name mean a pod from now on, in the headless service that the job has."""
        self._names[f"{pod.name}.{service}"] = pod.address
        self._tell()

    def _tell(self) -> None:
        """Tell all pods the names; each knows its own besides, without the service, as the kubelet has it."""
        known = [f"{address} {name}" for name, address in self._names.items()]
        for pod in self._pods:
            lines = ["127.0.0.1 localhost", f"{pod.address} {pod.name}", *known, ""]
            pod.names.write_text("\n".join(lines))  # in place, as the file is mounted

    def clear(self) -> None:
        """Delete all pods and their names."""
        for pod in self._pods:
            pod.delete()
        self._pods.clear()
        self._names.clear()

    def destroy(self) -> None:
        """Remove everything."""
        self.clear()
        call("ip", "link", "del", self.bridge, check=False)
        shutil.rmtree(self.folder)


@pytest.fixture(scope="session")
def _cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("pods of namespaces need root")
    if missing := [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]:
        pytest.skip(f"{', '.join(missing)} are missing: apt-get install iproute2 util-linux")
    try:
        made = Cluster()
    except RuntimeError as error:
        pytest.skip(f"namespaces cannot be made here: {error}")
    yield made
    made.destroy()


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster without pods."""
    yield _cluster
    _cluster.clear()


@pytest.fixture
def agents(cluster: Cluster) -> Callable[..., Pod]:
    """Starts a pod whose command is `distrun agent` with the given options and a program of Python."""
    distrun = [sys.executable, "-m", "distrun.runner", "agent"]

    def start(index: int, code: str, *options: str, hosts: int = 2, named: bool = True, **environ: str) -> Pod:
        variables = {"DISTRUN_HOSTS": str(hosts), "DISTRUN_KEY": "0123456789abcdef" * 4, **environ}
        command = [*distrun, "--start-timeout", "200", *options, "--", sys.executable, "-c", code]
        return cluster.start(index, *command, named=named, **variables)

    return start
