"""The connections of the control tree are there whichever ranks have met rank 0 themselves."""

from __future__ import annotations

import secrets
import socket
import threading
import time

import pytest
from in_process.rendezvous_of_threads import DEADLINE, KEY, endpoint as endpoint

from distrun.runtime.transport.control.control_tree import ControlTree, control_tree
from distrun.runtime.transport.control.tree_connections import connect_tree
from distrun.runtime.transport.rendezvous.across_hosts import rendezvous_across_hosts
from distrun.runtime.transport.rendezvous.protocol import Rendezvous, RendezvousEndpoint
from distrun.runtime.transport.rendezvous.within_host import LocalRendezvous

pytestmark = pytest.mark.usefixtures("no_descriptors_left")
HOSTS = ((0, 1), (2, 3), (4, 5), (6, 7))


class Rank(threading.Thread):
    """A rank that meets the others and connects with its parent and its children in the tree."""

    def __init__(self, name: str, rank: int, endpoint: RendezvousEndpoint, fan_out: int, is_alone: bool) -> None:
        super().__init__()
        self._rank, self._fan_out = rank, fan_out
        host = f"id-{rank // 2}"
        rendezvous = None if is_alone else LocalRendezvous(f"{name}.{host}", KEY)
        self._arguments = (rank, 8, host, host, endpoint, {"fan_out": fan_out}, DEADLINE, "", None, 15.0, rendezvous)
        self.rendezvous: Rendezvous | None = None
        self.tree: ControlTree | None = None
        self.early: dict[int, socket.socket] | None = None
        self.start()

    def run(self) -> None:
        self.rendezvous = rendezvous_across_hosts(*self._arguments)
        self.tree = control_tree(HOSTS, self._rank, self._fan_out, self.rendezvous.is_relayed)
        if self.tree is not None:
            self.early = connect_tree(self.rendezvous, self.tree, time.monotonic() + DEADLINE)


@pytest.mark.parametrize("alone", [(), (2, 6), (3, 5, 7), tuple(range(8))], ids=["relays", "leaders", "others", "all"])
@pytest.mark.parametrize("fan_out", [0, 1, 2, 8])
def test_each_leader_has_connections_with_its_parent_and_its_children(endpoint, fan_out, alone):
    name = secrets.token_hex(8)
    ranks = [Rank(name, rank, endpoint, fan_out, rank in alone) for rank in range(8)]
    for rank in ranks:
        rank.join(2 * DEADLINE)
        assert not rank.is_alive(), "it still waits"
    joined = [rank.rendezvous for rank in ranks if rank.rendezvous is not None]
    assert len(joined) == 8
    has_all = len(alone) > 2  # each host's ranks all meet rank 0 themselves, and its last one is no relay
    assert [rendezvous.is_relayed for rendezvous in joined] == [not has_all] * 8
    if has_all and not fan_out:
        assert all(rank.tree is None for rank in ranks)
    else:
        for rank, rendezvous in zip(ranks, joined, strict=True):
            tree = rank.tree
            assert rank.early == {}
            adjacent = {*tree.children, *(() if tree.parent is None else (tree.parent,))}
            assert rendezvous.control.keys() == rendezvous.alarms.keys() == adjacent
            for child in tree.children:
                for kind in ("control", "alarms"):
                    getattr(joined[child], kind)[tree.rank].sendall(f"{kind} {child}".encode())
                    assert getattr(rendezvous, kind)[child].recv(100) == f"{kind} {child}".encode()
    for rendezvous in joined:
        rendezvous.close()
