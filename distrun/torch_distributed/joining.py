"""Which world a default process group has: the job's own, or one of the ranks that share torch's store.

If a launcher has started the ranks with the rank and size that they have in the group, they join the job as
`distrun.init` does. Otherwise (`torch.multiprocessing.spawn`, or a rank and a world size chosen by the script) they
share only the store. So the ranks introduce themselves to each other there, and each makes the launch contract that a
launcher would have given it. All ranks see the same introductions, so all decide alike. The environment alone could
mislead a rank: children that a rank of a job spawns for a group of their own inherit the variables of that job.

Everyone who can connect to the store can read it, so it holds no secret. Ranks of one host identify each other by their
user, and ranks of several hosts need a key from elsewhere.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from distrun.contract import settings
from distrun.contract.launch import LaunchContract
from distrun.contract.settings import KEY
from distrun.errors import UsageError
from distrun.host.endpoints import format_endpoint, reserve_port
from distrun.host.identity import boot_id
from distrun.host.interfaces import matching, own_interfaces, reachable
from distrun.host.ranks import list_ranks
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.world import world
from distrun.runtime.world.bootstrap.join import World
from distrun.runtime.world.environments import detect
from distrun.runtime.world.environments.env_url import EnvUrl
from distrun.runtime.world.environments.single import Single
from distrun.torch_distributed.store_exchange import exchange

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_joined: World | None = None  # the world that this module has joined
_joined_ranks: tuple[int, ...] | None = None
"""The ranks of the world's members in a default group of another backend."""
_agreed_name = ""  # the name of the group of all ranks, while there is one


@dataclass(frozen=True)
class Introduction:
    """The facts about a rank that it tells the others."""

    world: list[int] | None
    """The rank and the size that it has in distrun's world, if it is in one."""
    in_job: bool
    """Whether a launcher has started it with the group's rank and size."""
    host: str
    """Is equal on ranks that can connect by a Unix socket: on one host, or in one container on it."""
    hostname: str
    has_key: bool
    """Whether the user has given it a key."""
    job: str
    """A new name for the job. Rank 0's is used."""
    endpoints: str
    """On rank 0, where it will listen for the ranks of other hosts."""


def join(store: Store, rank: int, size: int, timeout: timedelta) -> None:
    """Join a world of `size` ranks as rank `rank`; returns when all of them are in it.

    Args:
        store: the store that the ranks share.
        timeout: how long to wait for the others.

    Raises:
        UsageError: some ranks are in another world already, or there are several hosts and no key.
        BootstrapError: the other ranks did not come in time.
    """
    global _joined, _agreed_name
    chosen = settings.current()
    with ExitStack() as until_joined:
        own = _introduction(rank, size, chosen, until_joined)
        everybody = [own]
        if size > 1:
            text = json.dumps(asdict(own))
            texts = exchange(store, rank, size, text, timeout.total_seconds(), chosen.stall_warning)
            everybody = [Introduction(**json.loads(text)) for text in texts]
        variables = contract_variables(everybody, rank, chosen.key)
        if world.join_world(variables=variables):
            _joined = world.current()
    _agreed_name = everybody[0].job


def agreed_name() -> str:
    """Return the unique name that the ranks have agreed on in the last `join`, empty without one."""
    return _agreed_name


def join_beside(store: Store, ranks: Sequence[int], rank: int, timeout: timedelta) -> Sequence[int]:
    """Join a world with the ranks of a group whose default group has another backend, unless this rank is in one that
    has all of them. Return their ranks in the world. `store`, `timeout` and what is raised are as for `join`.

    Args:
        ranks: the ranks of the group in the default group, in the order of the group.
        rank: this rank's rank in the group.
    """
    global _joined_ranks
    if world.is_initialized() and not has_joined() and world.rank() == ranks[rank]:
        _joined_ranks = tuple(range(world.size()))  # the script has called `distrun.init`
    elif not has_joined() or _joined_ranks is None:
        join(store, rank, len(ranks), timeout)
        _joined_ranks = tuple(ranks)
    missing = sorted(set(ranks) - set(_joined_ranks))
    if missing:
        raise UsageError(
            f"a process group of backend 'distrun' beside another default group cannot have {list_ranks(missing)}: the "
            f"first one had {list_ranks(sorted(_joined_ranks))}; make the first one of all ranks"
        )
    return [_joined_ranks.index(each) for each in ranks]


def join_job() -> None:
    """Join the job that this process was started in, unless it is in a world already. `leave` undoes this."""
    global _joined
    if world.join_world():
        _joined = world.current()


def has_joined() -> bool:
    """Return whether this module has joined the present world."""
    return _joined is not None and world.is_initialized() and world.current() is _joined


def leave() -> None:
    """Leave the world if this module has joined it, but not if the script was in it before."""
    global _joined, _joined_ranks, _agreed_name
    _agreed_name, _joined_ranks = "", None
    is_ours, _joined = has_joined(), None
    if is_ours:
        world.shutdown()


def _introduction(rank: int, size: int, chosen: settings.Settings, until_joined: ExitStack) -> Introduction:
    """Return this rank's introduction. A port stays reserved until the ranks have joined."""
    topology = world.topology() if world.is_initialized() else None
    in_job = _is_in_job(rank, size)
    endpoints = ""
    if rank == 0 and size > 1 and topology is None and not in_job:
        port = until_joined.enter_context(reserve_port()).getsockname()[1]
        allowed = matching(reachable(own_interfaces()), chosen.network, f"host {socket.gethostname()!r}")
        endpoints = ",".join(format_endpoint(interface.address, port) for interface in allowed)
    return Introduction(
        world=None if topology is None else [topology.rank, topology.size],
        in_job=in_job,
        host=f"{boot_id()} {os.stat('/proc/self/ns/net').st_ino}",
        hostname=socket.gethostname(),
        has_key=chosen.key is not None,
        job=secrets.token_hex(16),
        endpoints=endpoints,
    )


def _is_in_job(rank: int, size: int) -> bool:
    """Return whether a launcher has started this process as rank `rank` of `size`.

    RANK and WORLD_SIZE alone do not count: the ranks' introductions say more.
    """
    environment = detect(os.environ)
    if isinstance(environment, (Single, EnvUrl)):
        return False
    try:
        place = environment.topology()
    except UsageError:  # not all launchers tell all that is needed
        return False
    return (place.rank, place.size) == (rank, size)


def contract_variables(everybody: Sequence[Introduction], rank: int, key: bytes | None) -> Mapping[str, str]:
    """Return the variables of the launch contract that follows from the introductions, empty if none is needed. Refuse
    ranks that cannot form this world.
    """
    _check_worlds(everybody)
    if all(one.world or one.in_job for one in everybody):
        return {}
    names = [one.host for one in everybody]
    layout = HostLayout.of(names, rank)
    cross_rank, cross_size = layout.cross()
    contract = LaunchContract(
        job=everybody[0].job,
        key="" if layout.count == 1 else _job_key(everybody, key),
        rank=rank,
        size=len(everybody),
        local_rank=layout.position,
        local_size=len(layout.local_ranks),
        cross_rank=cross_rank,
        cross_size=cross_size,
        hostname=everybody[rank].hostname,
        master_addr="",
        master_port=0,
        rendezvous="" if layout.count == 1 else everybody[0].endpoints,
    )
    return contract.to_environ()


def _check_worlds(everybody: Sequence[Introduction]) -> None:
    """Refuse ranks if some of them are in a world that does not fit."""
    size = len(everybody)
    for rank, one in enumerate(everybody):
        if one.world is not None and one.world != [rank, size]:
            raise UsageError(
                f"rank {rank} of {size} of the process group is rank {one.world[0]} of {one.world[1]} in distrun "
                "already: give init_process_group the rank and world_size of distrun, or call distrun.shutdown() first"
            )
    inside = [rank for rank, one in enumerate(everybody) if one.world is not None]
    if 0 < len(inside) < size:
        outside = [rank for rank in range(size) if rank not in inside]
        raise UsageError(
            f"{list_ranks(inside)} called distrun.init() before init_process_group and {list_ranks(outside)} did not: "
            "call it on all ranks before, or on none"
        )


def _job_key(everybody: Sequence[Introduction], key: bytes | None) -> str:
    """Return the key of this job, which follows from the user's key, which all ranks must have, and the job's name."""
    without = [rank for rank, one in enumerate(everybody) if not one.has_key]
    if without or key is None:
        raise UsageError(
            f"the process group has several hosts, and {list_ranks(without)} no secret to know the others by: set "
            f"{KEY} to the same text on all ranks, as from `openssl rand -hex 32`, or start the script with `distrun`"
        )
    return hmac.digest(key, f"torch.distributed {everybody[0].job}".encode(), "sha256").hex()
