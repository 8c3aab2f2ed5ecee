"""Several hosts made of namespaces, a rank on each, on one switch."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.hosts import namespaces
from benchmarks.hosts.namespaces import INTERFACE, LOGIN, Host, Link
from benchmarks.support import processes, ranks

_SUBNET = "10.231.1"
_PORT = "29500"


@contextlib.contextmanager
def cluster(count: int, link: Link, work: Path) -> Iterator[list[Host]]:
    """Make hosts for as long as the context lasts; their files go to the empty directory `work`.

    Raises:
        processes.ProcessError: they cannot be made here.
    """
    with cluster_with_login(count, link, work) as (_, hosts):
        yield hosts


@contextlib.contextmanager
def cluster_with_login(count: int, link: Link, work: Path) -> Iterator[tuple[Host, list[Host]]]:
    """Make hosts as `cluster` does, and a machine beside them, at their switch, to start things from."""
    (work / "tmp").mkdir(parents=True)
    names = [f"h{index}" for index in range(count)]
    lines = [f"{address(index)} {name}\n" for index, name in enumerate(names)]
    (work / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(namespaces.hold(LOGIN, work))
        namespaces.make_switch(switch, link)
        namespaces.network_command(switch, f"ip address add {_SUBNET}.250/24 dev lan")
        hosts = [stack.enter_context(namespaces.hold(name, work)) for name in names]
        for index, host in enumerate(hosts):
            namespaces.attach(switch, host, f"{address(index)}/24", link)
        yield switch, hosts


def run(hosts: list[Host], module: str, arguments: list[str], environ: Mapping[str, str], deadline: float) -> Any:
    """Run a module with a rank on each host; return what rank 0 has printed last, read as JSON.

    Raises:
        processes.ProcessError: a rank failed, or was not done in time.
    """
    shared = {
        **environ,
        **ranks.one_thread(),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": address(0),
        "MASTER_PORT": _PORT,
        "DISTRUN_NETWORK": INTERFACE,
        "DISTRUN_KEY": secrets.token_hex(32),
        "PYTHONPATH": os.getcwd(),  # entering the namespace has left it
        "PATH": "/usr/sbin:/sbin:" + os.environ.get("PATH", os.defpath),
    }

    def rank(index: int) -> str:
        command = hosts[index].command(sys.executable, "-m", module, *arguments)
        return processes.run(command, {**shared, "RANK": str(index)}, deadline).output

    with ThreadPoolExecutor(len(hosts)) as pool:
        outputs = list(pool.map(rank, range(len(hosts))))
    return json.loads(outputs[0].strip().splitlines()[-1])


def address(index: int) -> str:
    """Return the address of a host."""
    return f"{_SUBNET}.{index + 1}"
