"""The backend "distrun" of torch.distributed: DDP, FSDP, DTensor and what is built on them, on distrun's transport.

    torch.distributed.init_process_group("distrun")

torch loads the entry points of group `torch.backends` when it is imported, and with them `register`: a script need not
import distrun. (Where TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns that off, it calls `distrun.torch_distributed.register()`.)
Every `import torch` comes by here, so nothing else is imported before a process group is made.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store

BACKEND = "distrun"
"""The name by which scripts ask for it."""


def register() -> None:
    """Make the backend known to torch.distributed; does nothing if it is."""
    from torch import distributed

    if distributed.is_available() and BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, _create, devices=["cpu", "cuda"])


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    """Return a process group of this many ranks, of which we are `rank`; `store` is shared by them."""
    from distrun.torch_distributed.process_group import create

    return create(store, rank, size, timeout)
