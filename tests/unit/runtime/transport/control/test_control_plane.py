"""Messages between two ranks of one host, with and without a direct link."""

from __future__ import annotations

import os

from distrun.runtime.operations.timeouts import FOREVER
from distrun.runtime.transport.control.control_plane import ControlPlane
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.rendezvous.within_host import PeerInfo
from distrun.runtime.transport.shared_memory.doorbell import new_bell_fd
from distrun.runtime.transport.shared_memory.segment import Layout, new_segment_fd

ROOM = Layout(2).heap + (1 << 26)


def test_what_a_direct_link_has_received_comes_first_and_is_seen():
    me = os.getpid()
    peers = [PeerInfo(me, new_segment_fd(ROOM), new_bell_fd(), new_bell_fd(), os.pidfd_open(me)) for _ in range(2)]
    copies = [PeerInfo(me, *map(os.dup, peer.descriptors)) for peer in peers]
    first, second = LocalGroup(0, range(2), peers, FOREVER), LocalGroup(1, range(2), copies, FOREVER)
    try:
        sender, receiver = ControlPlane(first), ControlPlane(second)
        look, inbox, _ = receiver.direct_link(0)
        look()
        assert not inbox
        assert not receiver.waiting()
        for message in (b"one", b"two", b"three"):
            sender.send(1, message)
        look()
        look()
        assert inbox.popleft() == (0, b"one")
        assert receiver.waiting()
        assert list(receiver.messages()) == [(0, b"two"), (0, b"three")]
        assert not receiver.waiting()
    finally:
        first.close()
        second.close()
