"""The program that examines a host: it answers requests on stdin, a line of JSON each, with frames on stdout.

It exits when its stdin ends, even in the middle of an answer, and when no request has come for a long time. Only the
latter shows a cut link.
"""

from __future__ import annotations

import json
import os
import platform
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

from distrun import __version__
from distrun.host.endpoints import PORTS
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.protocol.handshake import MAGIC, HostError, HostInfo
from distrun.runner.system.machine import identity
from distrun.tools.doctor import gpus, machine_facts
from distrun.tools.doctor.gpu_checks import measure, steps
from distrun.tools.doctor.network import client
from distrun.tools.doctor.network.server import BenchmarkServer

_REQUEST_TIMEOUT = 300.0  # seconds without a request until the probe exits


class Probe:
    """The requests that the doctor may send. Each public method is a request of that name."""

    def __init__(self) -> None:
        self._listener: BenchmarkServer | None = None

    def clock(self) -> dict[str, Any]:
        """Return this host's time, in seconds since 1970."""
        return {"time": time.time()}

    def directory(self, path: str) -> dict[str, Any]:
        """Return whether a directory exists, and whether it can be used."""
        return {"exists": os.path.isdir(path), "usable": os.access(path, os.R_OK | os.X_OK)}

    def machine(self) -> dict[str, Any]:
        """Return the members of `machine_facts.MachineFacts`."""
        return asdict(machine_facts.gather())

    def gpus(self) -> dict[str, Any]:
        """Return the members of `gpus.Gpus`."""
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # all GPUs, in the order of nvidia-smi
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return asdict(gpus.gather())

    def gpu_facts(self) -> dict[str, Any]:
        """Return what `gpu_checks.steps.gather` returns."""
        return steps.gather()

    def gpu_copies(self) -> dict[str, Any]:
        """Return what `gpu_checks.measure.copies` returns."""
        return measure.copies()

    def gpu_allreduce(self, count: int) -> dict[str, Any]:
        """Return what `gpu_checks.measure.allreduce` returns for `count` ranks."""
        return measure.allreduce(count)

    def listen(self, address: str, key: str, ports: str) -> dict[str, Any]:
        """Listen for the probe of another host, on one of `ports` if that is not empty, and return the port."""
        os.environ[PORTS] = ports
        self._listener = BenchmarkServer(address, bytes.fromhex(key))
        return {"port": self._listener.port}

    def stop_listening(self) -> dict[str, Any]:
        """Stop listening, and return the server's measurements."""
        server, self._listener = self._listener, None
        return {} if server is None else server.close()

    def measure(self, address: str, port: int, key: str) -> dict[str, Any]:
        """Connect to the probe of another host, and return the client's measurements."""
        return client.measure(address, port, bytes.fromhex(key))

    def transfer(self, address: str, port: int, key: str, to_server: int, from_server: int) -> dict[str, Any]:
        """Measure again, sending and receiving these numbers of bytes per second."""
        return client.transfer(address, port, bytes.fromhex(key), to_server, from_server)

    def largest_packet(self, address: str, port: int, key: str, is_sent: bool) -> dict[str, Any]:
        """Return the members of `packet_sizes.PacketSizes` for one direction, or {} if they are not certain."""
        return client.largest_packet(address, port, bytes.fromhex(key), is_sent) or {}

    def connect(self, address: str, port: int, key: str, has_loss: bool) -> dict[str, Any]:
        """Connect to the probe of another host, without measuring."""
        client.connect(address, port, bytes.fromhex(key), has_loss)
        return {}


_REQUESTS: dict[str, Callable[..., dict[str, Any]]] = {
    name: method for name, method in vars(Probe).items() if not name.startswith("_")
}


def answer(probe: Probe, line: bytes) -> dict[str, Any]:
    """Return the answer to one request: the result of its method, or `error`, a sentence."""
    try:
        request = json.loads(line)
        return _REQUESTS[request.pop("ask")](probe, **request)
    except HostError as error:
        return {"error": str(error)}
    except Exception as error:  # any exception: the doctor must not wait in vain
        return {"error": repr(error)}


def main() -> None:
    """Run a probe on this process's stdin and stdout."""
    answers = os.dup(1)
    os.dup2(2, 1)  # so that a library that prints does not disturb the frames
    versions = HostInfo(__version__, platform.python_version(), os.getpid(), machine=identity())
    _write(answers, MAGIC + Frame(FrameKind.HELLO, payload=versions.to_json()).encode())
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_work, args=(requests, answers), daemon=True).start()
    pending = b""
    while select.select([0], [], [], _REQUEST_TIMEOUT)[0] and (data := os.read(0, 1 << 16)):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            requests.put(line)
    _end_children()
    os._exit(0)


def _work(requests: SimpleQueue[bytes], answers: int) -> None:
    probe = Probe()
    while True:
        found = answer(probe, requests.get())
        _write(answers, Frame(FrameKind.RESULT, payload=json.dumps(found).encode("ascii")).encode())


def _write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:  # the doctor is gone
        os._exit(0)


def _end_children() -> None:
    """Kill child processes, such as an nvidia-smi that hangs."""
    import psutil

    with suppress(psutil.Error):
        for child in psutil.Process().children(recursive=True):
            child.kill()


if __name__ == "__main__":
    main()
