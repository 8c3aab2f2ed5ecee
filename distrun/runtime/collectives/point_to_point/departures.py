"""Departures: ends transfers with ranks that are gone, once it is known that they are and why."""

from __future__ import annotations

import math

from distrun.host.connections.tcp_options import keepalive_times
from distrun.runtime.collectives.point_to_point.delivery import Delivery
from distrun.runtime.collectives.point_to_point.peer import Peer, Peers
from distrun.runtime.engine.engine import ProgressEngine
from distrun.runtime.operations import waking_clock
from distrun.runtime.transport.network import REASON_TIMEOUT

CHECK_INTERVAL = 0.1
"""Seconds between two checks for ranks that are gone, while a transfer is pending."""


class Departures:
    """Checks for ranks that have ended or left, while transfers are pending."""

    def __init__(self, engine: ProgressEngine, peers: Peers, delivery: Delivery) -> None:
        self._engine = engine
        self._local_group = engine.local_group
        self._peers = peers
        self._delivery = delivery
        self._next_look = 0.0
        network = self._local_group.network
        addresses = None if network is None else network.addresses
        keepalive = 0.0 if addresses is None else addresses.keepalive
        self._interval = keepalive_times(keepalive)[1]
        self._keepalive = keepalive + self._interval if keepalive else math.inf
        self._next_check = 0.0

    @property
    def matter(self) -> bool:
        """Whether any transfer waits for another rank."""
        return bool(self._delivery.under_way) or any(peer.is_watched for peer in self._peers.values())

    def look(self) -> str | None:
        """Fail the transfers that wait for ranks that have left. Returns the reason if the whole job has failed."""
        reason = self._engine.failure
        now = waking_clock.now()
        if reason is not None or (now < self._next_look and not self._delivery.has_news) or not self.matter:
            return reason
        self._next_look = now + CHECK_INTERVAL
        self._delivery.has_news = False
        if self._local_group.network is not None:
            self._engine.ensure_progress()  # only the progress thread reads the reasons that other hosts send
            self._check_connections(now)
        reason = self._local_group.lost_rank()
        if reason is None:
            for receive in self._delivery.matching.posted():
                for source in receive.sources:
                    self._peers[source]
            for peer in list(self._peers.values()):
                if peer.lost is None:
                    self._look_at(peer, now)
        return reason

    def _check_connections(self, now: float) -> None:
        """Close connections whose peer acknowledges nothing: the kernel would wait longer, for all its retries."""
        if now >= self._next_check and self._keepalive < math.inf:
            self._next_check = now + self._interval
            for peer in self._peers.values():
                for connection in list(peer.connections):
                    connection.give_up_if_silent(self._keepalive)

    def _look_at(self, peer: Peer, now: float) -> None:
        if peer.connections and peer.ended is None:
            return  # what it sent before it left is still arriving, and the end of the connection follows
        why = self._local_group.departure_of(peer.rank)
        if why is None and peer.ended is not None:
            since, how = peer.ended
            if now < since + REASON_TIMEOUT:
                return
            who = self._local_group.describe_rank(peer.rank)
            why = f"{who} has left" if peer.has_said_farewell else f"{who} is gone: {how}"
        if why is not None:
            self._delivery.lose(peer, why)
