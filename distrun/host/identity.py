"""The identity of this boot of this machine."""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # 5c2f7a0e-8a54-4a3c-9a6e-0f8a2f7e6d11


def boot_id() -> str:
    """Return a text that is unique to this boot, and the same in all containers of the machine.

    Raises:
        OSError: the kernel does not provide it.
    """
    return _BOOT_ID.read_text().strip()
