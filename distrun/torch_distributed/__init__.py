"""The backend "distrun" of torch.distributed: runs DDP, FSDP, DTensor and libraries built on them on distrun's
transport.

    torch.distributed.init_process_group("distrun")

torch loads the entry points of group `torch.backends` when it is imported, and with them `register`, so a script need
not import distrun. (Where TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns that off, it calls
`distrun.torch_distributed.register()`.) Every `import torch` runs this module, so nothing else is imported before a
process group is made. An error here must fail a script that asks for a process group, not every `import torch`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup

BACKEND = "distrun"
"""The backend's name in `init_process_group`."""


def register() -> None:
    """Register the backend with torch.distributed, unless it is registered already. Never raises."""
    try:
        _register()
    except Exception as error:  # of a torch that has other interfaces: settings are read when a group is made
        reason = f"{type(error).__name__}: {error}"
        logging.getLogger("distrun").warning("torch.distributed has no backend %r (%s)", BACKEND, reason)


def _register() -> None:
    from torch import distributed

    if distributed.is_available() and BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
        distributed.register_rendezvous_handler(BACKEND, _rendezvous)  # type: ignore[attr-defined, no-untyped-call]
        if "DISTRUN_TORCH_BACKEND" in os.environ:
            from distrun.contract import settings

            if settings.is_given(settings.TORCH_BACKEND):
                from distrun.torch_distributed.substitution import substitute

                substitute()


def _create(described: Any, options: Any) -> ProcessGroup:
    """Return a process group as `described` by torch. The backend has no `options` of its own."""
    import torch
    from torch.distributed import Backend

    from distrun.torch_distributed.process_group import create_described

    if not torch.cuda.is_available():  # torch makes tensors of its own on a device that it finds here
        Backend.backend_capability[BACKEND] = ["cpu"]
    return create_described(described)


def _rendezvous(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
    """Yield the result of the rendezvous at `url`. `options` are for other kinds of stores."""
    from distrun.torch_distributed.rendezvous import meet

    yield meet(url)
