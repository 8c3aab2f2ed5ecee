"""Computing the variables of each rank from the facts about all workers. Pure except for random names."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence

import distrun
from distrun.errors import UsageError
from distrun.host.endpoints import format_endpoint
from distrun.host.gpus import VISIBLE
from distrun.ray.placement import WorkerFacts, node_names, visible_gpus
from distrun.runner.planning.networks import Networks
from distrun.runner.planning.variables.ranks import MasterEndpoint, RankLocation, RankVariables


def rank_environs(
    facts: Sequence[WorkerFacts], env: Mapping[str, str], horovod: bool = False, network: str = ""
) -> list[dict[str, str]]:
    """Return the variables of each rank of a new world.

    Args:
        facts: the workers, in rank order.
        env: further variables, the same for all.
        horovod: whether the ranks get Horovod's variables too.
        network: the value of `--network`. Empty: the rendezvous is at Ray's address of rank 0's node.

    Raises:
        UsageError: a node has another version of distrun, or no interface of that network.
    """
    _check_versions(facts)
    names = node_names(facts)
    made = RankVariables(job=secrets.token_hex(16), key=secrets.token_hex(32), exports=frozenset(env), horovod=horovod)
    slots: Counter[str] = Counter()
    places = []
    for fact in facts:
        places.append(RankLocation(names[fact.node], slots[fact.node]))
        slots[fact.node] += 1
    contracts = made.contracts(places, _master_endpoint(facts, names, network))
    nodes = list(names)
    common = {**env, **({"DISTRUN_NETWORK": network} if network else {})}
    return [
        {**made.of(contract, nodes.index(fact.node), len(nodes)), **common, **_gpus(facts, fact)}
        for contract, fact in zip(contracts, facts, strict=True)
    ]


def _gpus(facts: Sequence[WorkerFacts], fact: WorkerFacts) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES. A worker without GPUs must not use other workers' GPUs, which Ray leaves visible."""
    return {VISIBLE: ",".join(visible_gpus(facts, fact.node)) if fact.gpus else ""}


def _master_endpoint(facts: Sequence[WorkerFacts], names: Mapping[str, str], network: str) -> MasterEndpoint:
    first = facts[0]
    if len(names) == 1:
        return MasterEndpoint("127.0.0.1", first.port)
    if not network:
        return MasterEndpoint(first.address, first.port, format_endpoint(first.address, first.rendezvous))
    networks = Networks({names[fact.node]: fact.interfaces for fact in facts}, network)
    addresses = [interface.address for interface in networks.of(names[first.node])]
    ends = [format_endpoint(address, first.rendezvous) for address in addresses]
    return MasterEndpoint(addresses[0], first.port, ",".join(ends))


def _check_versions(facts: Sequence[WorkerFacts]) -> None:
    for fact in facts:
        if fact.version != distrun.__version__:
            raise UsageError(
                f"node {fact.address} has distrun {fact.version}, and this process {distrun.__version__}: install the "
                "same version on all nodes, as by runtime_env={'pip': ['distrun==...']} in ray.init"
            )
