"""A real Ray cluster of two nodes, which are two raylets on this machine."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from shell import wait_until

MEMORY = 100_000_000  # bytes of each node's object store


@pytest.fixture(scope="session")
def cluster(for_folder: Callable[..., Any]) -> Any:
    """A cluster of two nodes with two CPUs each; this process is connected to it."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'ray[data,train,tune]'")
    return for_folder(Path(__file__).parent, _cluster())


@contextmanager
def _cluster() -> Iterator[Any]:
    import ray

    folder = tempfile.mkdtemp(prefix="distrun-ray-", dir="/tmp")  # short, as it holds sockets
    made = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_agent_register_timeout_ms", "240000")  # a node whose agent starts later than that ends itself
        try:
            made = _two_nodes(folder) or _two_nodes(folder)
            assert made, "Ray has not started a cluster in two tries"
            ray.init(address=made.address, log_to_driver=False)
            yield made
        finally:
            ray.shutdown()
            if made:
                made.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def _two_nodes(folder: str) -> Any:
    """Return a cluster of two nodes; None if one of them has not registered, as happens on a very busy machine.

    Ray forgets the processes of such a node: they are those that have the folder on their command line.
    """
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:
        _add_node(made, num_cpus=2, include_dashboard=False)
        _add_node(made, num_cpus=2)
    except Exception as error:  # Ray raises no class of its own
        if "timed out during startup" not in str(error):
            raise
        made.shutdown()
        for process in psutil.process_iter(["cmdline"]):
            if any(folder in word for word in process.info["cmdline"] or ()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        return None
    return made


class _SlowTime:
    """The module `time` with a monotonic clock that is eight times as slow."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() / 8


def _add_node(cluster: Any, **resources: Any) -> Any:
    """Add a node to a cluster. On a busy machine it takes longer than the 30 s that Ray waits for it."""
    from ray._private import node

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "time", _SlowTime())
        return cluster.add_node(object_store_memory=MEMORY, **resources)


@pytest.fixture
def another_node(cluster: Any) -> Iterator[Callable[..., Any]]:
    """Adds nodes to the cluster. It has none of them any more, and knows that, when the test is over."""
    import ray

    added = []

    def add(**resources: int) -> Any:
        added.append(_add_node(cluster, **resources))
        return added[-1]

    yield add
    for node in added:
        if node in cluster.list_all_nodes():
            cluster.remove_node(node)
    gone = {node.node_id for node in added}
    wait_until(lambda: not gone & {node["NodeID"] for node in ray.nodes() if node["Alive"]})
