"""The first program on another host, which is sent as text and imports nothing of distrun."""

from __future__ import annotations

from distrun.runner.protocol import frames, handshake
from distrun.runner.shipping import first_stage


def test_it_speaks_the_protocol_of_agents():
    assert first_stage.MAGIC == handshake.MAGIC
    assert first_stage.HEADER.format == frames.HEADER.format
    assert first_stage.HELLO == frames.FrameKind.HELLO
    assert first_stage.SHIPMENT == frames.FrameKind.SHIPMENT
