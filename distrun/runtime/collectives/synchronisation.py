"""Barrier, and waiting for handles."""

from __future__ import annotations

from typing import Any

from distrun.errors import UsageError
from distrun.runtime import world
from distrun.runtime.operations.handle import AnyHandle, Handle, HandleGroup
from distrun.runtime.operations.request import Request
from distrun.runtime.process_set import ProcessSet, global_process_set


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> None:
    """Return when all ranks of the process set have called it."""
    request = Request("barrier", name, "uint8", (), process_set=process_set.process_set_id)
    handle = Handle(world.engine(), request, ())
    handle.engine.run(handle).wait()


def poll(handle: AnyHandle) -> bool:
    """Whether the operation is done, on the GPU too if its tensors are there; never waits."""
    _check(handle)
    return handle.poll()


def synchronize(handle: AnyHandle) -> Any:
    """Wait for the operation; its result. See `Handle.wait` for the errors, and `DeviceHandle.wait` for arrays on a GPU."""
    _check(handle)
    return handle.wait()


def _check(handle: Any) -> None:
    if not isinstance(handle, (Handle, HandleGroup)):
        raise UsageError(f"{handle!r} is no handle: give what an operation ending in _async returned")
