"""The backend "distrun" for scripts that ask torch.distributed for gloo, or for no backend: `distrun --torch-backend`.

torch has a default backend for each kind of device, and "distrun" becomes that. But most scripts and frameworks name
gloo themselves, and torch has no way to change the backend behind that name. So its functions `init_process_group` and
`new_group` are replaced by functions that may change the requested backend and call the originals.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from distrun.contract import settings
from distrun.torch_distributed import BACKEND

_DEVICES = ("cpu", "cuda")

log = logging.getLogger("distrun")


def substitute() -> None:
    """Make torch.distributed use "distrun" in place of gloo, and as the default."""
    from torch import distributed
    from torch.distributed import device_mesh, distributed_c10d

    init, new_group = distributed_c10d.init_process_group, distributed_c10d.new_group

    @functools.wraps(init)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        settings.current()  # refuses a DISTRUN_TORCH_BACKEND that is neither true nor false
        chosen = chosen_backend(backend)
        init(chosen or BACKEND, *args, **kwargs)
        if distributed.get_rank() == 0:
            _tell(backend, chosen or BACKEND)

    @functools.wraps(new_group)
    def new_group_like(
        ranks: list[int] | None = None, timeout: Any = None, backend: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        return new_group(ranks, timeout, chosen_backend(backend), *args, **kwargs)

    for module in (distributed, distributed_c10d, device_mesh):
        setattr(module, "init_process_group", init_process_group)  # noqa: B010  # the module declares it as it was
        setattr(module, "new_group", new_group_like)  # noqa: B010
    distributed.Backend.default_device_backend_map.update(dict.fromkeys(_DEVICES, BACKEND))


def chosen_backend(asked: str | None) -> str | None:
    """Return the backend for a script that asks for `asked`, or None if it has asked for none, and gets the default.

    It is "distrun" in place of gloo, and in place of gloo for CPUs with NCCL for GPUs, which is torch's own default. A
    script that names NCCL alone, or any other backend, gets that.
    """
    if asked is None or asked.lower() in ("", "undefined"):
        return None
    parts = [part.rpartition(":") for part in asked.lower().split(",")]
    devices, names = {device for device, _, _ in parts}, {name for _, _, name in parts}
    is_default = names == {"gloo"} or (names == {"gloo", "nccl"} and devices == {"cpu", "cuda"})
    return BACKEND if is_default and devices <= {"", *_DEVICES} else asked


def _tell(asked: str | None, given: str) -> None:
    if given == BACKEND:
        log.warning("torch.distributed is on distrun; the script asks for %s (--torch-backend)", asked or "no backend")
    else:
        log.warning("the script asks torch.distributed for %s, which --torch-backend leaves as it is", asked)
