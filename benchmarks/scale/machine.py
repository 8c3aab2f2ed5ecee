"""The hosts that are simulated, and the network between them."""

from __future__ import annotations

from dataclasses import dataclass

PER_PACKET = 66
"""Bytes on the wire around those of a message."""


@dataclass(frozen=True)
class Machine:
    """The simulated hosts, and the network between them."""

    cores: int
    """The cores of a host."""
    wake: float
    """Seconds until a rank that sleeps has noticed a message."""
    latency: float
    """Seconds of a message between two hosts, besides its bytes."""
    rate: float
    """Bytes per second of a host's link."""
    system_call: float
    """Seconds of sending a message to another host, or of receiving one."""
    copying: float = 5e9
    """Bytes per second that a core hands to the kernel, or takes from it."""
    memory: float = 10e9
    """Bytes per second that a core reads and writes when it adds up arrays."""


CLUSTER = Machine(cores=16, wake=20e-6, latency=20e-6, rate=25e9 / 8, system_call=5e-6)
"""Hosts of a cluster: 25 Gbit/s, and a link latency that is usual in one room."""
