"""Bundles for Ray's placement groups, and which worker becomes which rank. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distrun.host.interfaces import Interface
from distrun.ray.options import WorkerRequest


@dataclass(frozen=True)
class WorkerFacts:
    """The facts about a worker, collected on its node."""

    node: str
    """Ray's id of its node."""
    address: str
    """Ray's address of the node."""
    pid: int
    version: str
    """The version of distrun there."""
    rendezvous: int
    """A port that is reserved there for the rendezvous, if this becomes rank 0."""
    port: int
    """Another port that is free there, for other frameworks."""
    interfaces: tuple[Interface, ...]
    gpus: tuple[str, ...]
    """Its own GPUs, as in CUDA_VISIBLE_DEVICES."""
    logs: tuple[tuple[str, int], ...] = ()
    """The files of its stdout and stderr, and their lengths when it started."""


def bundles(request: WorkerRequest) -> tuple[list[dict[str, float]], str]:
    """Return the bundles that a request needs, and Ray's strategy of placing them."""
    if request.num_hosts is None:
        return [request.resources] * request.num_workers, "PACK"
    per_host = request.num_workers // request.num_hosts
    bundle = {name: amount * per_host for name, amount in request.resources.items()}
    return [bundle] * request.num_hosts, "STRICT_SPREAD"


def capacity(bundle: Mapping[str, float], nodes: Sequence[Mapping[str, float]], strategy: str) -> int:
    """Return the number of such bundles that fit on nodes with these resources."""
    room = [int(min(node.get(name, 0.0) // amount for name, amount in bundle.items() if amount)) for node in nodes]
    return sum(min(bundles, 1) if strategy == "STRICT_SPREAD" else bundles for bundles in room)


def listed(resources: Mapping[str, float]) -> str:
    """Return resources as text, such as `1 CPU and 2 GPU`."""
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())


def rank_order(facts: Sequence[WorkerFacts]) -> list[int]:
    """Return the indices of workers in the order of their ranks.

    The ranks of a node follow each other, by their GPUs. Nodes come in the order of their first workers.
    """
    nodes = list(dict.fromkeys(fact.node for fact in facts))
    return sorted(
        range(len(facts)), key=lambda index: (nodes.index(facts[index].node), _gpu_order(facts[index]), index)
    )


def node_names(facts: Sequence[WorkerFacts]) -> dict[str, str]:
    """Return a name for each node: its address, with the start of Ray's id if several nodes share an address."""
    addresses = {fact.node: fact.address for fact in facts}
    shared = [address for address in addresses.values() if list(addresses.values()).count(address) > 1]
    return {node: f"{at}-{node[:8]}" if at in shared else at for node, at in addresses.items()}


def visible_gpus(facts: Sequence[WorkerFacts], node: str) -> list[str]:
    """Return the GPUs that all workers of a node see, so that NCCL can connect them directly.

    The i-th is the first GPU of local rank i, which the rank is bound to. The ranks' further GPUs come after these.
    """
    own = [fact.gpus for fact in facts if fact.node == node]
    firsts = [gpus[0] for gpus in own if gpus]
    return firsts + [gpu for gpus in own for gpu in gpus[1:]]


def _gpu_order(fact: WorkerFacts) -> tuple[tuple[int, str], ...]:
    """Return a sort key with "10" after "9"; ids that are not numbers are sorted as text."""
    return tuple((int(gpu) if re.fullmatch(r"\d+", gpu) else -1, gpu) for gpu in fact.gpus)
