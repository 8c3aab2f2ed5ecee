"""Let a rank find its simulated GPU. Python runs this module at its start if tests/simulator is on the PYTHONPATH.

It imports nothing that the process would not import anyway: modules of distrun are patched when they are imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path
from types import ModuleType


def _show_gpus(module: ModuleType) -> None:
    """Make a folder per GPU, as NVIDIA's driver has them under /proc, and let distrun count those."""
    import tempfile

    count = int(os.environ["SIMULATED_GPUS"])
    given = os.environ.get("SIMULATED_GPU_FOLDER")
    folder = Path(given or f"{tempfile.gettempdir()}/simulated-gpus-{os.getuid()}-{count}")
    for number in range(count):
        (folder / f"0000:{0x3B + number:02x}:00.0").mkdir(parents=True, exist_ok=True)
    module._DRIVER = folder  # type: ignore[attr-defined]
    module._NODES = folder / "no device nodes"  # type: ignore[attr-defined]


def _show_libcuda(module: ModuleType) -> None:
    from simulator import libcuda

    libcuda.patch(module)


_PATCHES = {"distrun.host.gpus": _show_gpus, "distrun.runtime.gpu.driver": _show_libcuda}


class _Finder(importlib.abc.MetaPathFinder):
    """A finder of modules that patches those in _PATCHES when they have been executed."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in _PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _PATCHES[fullname](module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "SIMULATED_GPUS" in os.environ:
    sys.meta_path.insert(0, _Finder())
