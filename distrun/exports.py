"""The names that a package exports at run time. Type checkers see them by `import x as x` and `import *`.

Public names are written once, in these imports. A package derives its `__all__` from them, behind `if not
TYPE_CHECKING`, because type checkers take a computed `__all__` for an empty one.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType


def exported(namespace: Mapping[str, object]) -> list[str]:
    """Return the names that a module exports, sorted: no modules, nothing private, and not `TYPE_CHECKING`."""
    return sorted(
        name
        for name, value in namespace.items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "TYPE_CHECKING"
    )


def later(package: str, **modules: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a package for names that most jobs do without: each with the module that has it, or
    that it is, which is imported on demand."""

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(modules[name])
        return module if modules[name] == f"{package}.{name}" else getattr(module, name)

    return get
