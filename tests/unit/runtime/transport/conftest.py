"""Fixtures for tests of the transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from in_process.connected_ranks import three_networks

from distrun.runtime.transport.network import Network


@pytest.fixture
def three() -> Iterator[list[Network]]:
    """Ranks 0, 1 and 2 of three hosts, connected as after the rendezvous."""
    yield from three_networks()
