"""Ports at which launchers of these tests meet."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def meeting_port() -> int:
    """A port that nobody has, and that no connection gets meanwhile: it lies below those that the kernel hands out."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(end - 10_000, end)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
