"""Ports of the rendezvous of launchers, and scripts in the place of programs."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def rendezvous_port() -> int:
    """A port that nobody has, and that no connection gets meanwhile: it lies below those that the kernel hands out."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(end - 10_000, end)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts shell scripts in the place of programs of these names."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(**scripts: str) -> None:
        for name, text in scripts.items():
            (folder / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)

    return make
