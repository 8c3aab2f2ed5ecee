"""A hook on the import of a framework, so that the framework's room can change it before the script uses it.

A script may import torch or Keras anywhere, or through another library. So the import itself is watched: as soon as the
framework's module has been executed, `install()` of its room is called, once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_actions: dict[str, list[Callable[[ModuleType], None]]] = {}


def watch() -> None:
    """Call `install` of a framework's room when the framework is imported, or now if it is already."""
    for name in ("torch", "keras"):
        after_import(name, lambda module: importlib.import_module(f"distrun.auto.{module.__name__}").install())


def after_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call `action` with a module as soon as it has been imported, or now if it is already.

    Args:
        name: the module's full name, such as `torch.utils.tensorboard`.
        action: is called once, in the thread that imports.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        action(module)
        return
    _actions.setdefault(name, []).append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


class _Finder(MetaPathFinder):
    """A finder that delegates to the others, and wraps `exec_module` of the loader that they find."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _actions:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _add_actions(spec.loader, fullname)
                return spec
        return None


def _add_actions(loader: Any, name: str) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        for action in _actions.pop(name, []):
            action(module)

    loader.exec_module = exec_module


_finder = _Finder()
