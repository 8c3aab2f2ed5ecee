"""The names that a package exports at run time. Type checkers see them by `import x as x` and `import *`.

Public names are written once, in these imports. A package derives its `__all__` from them, behind `if not
TYPE_CHECKING`, because type checkers take a computed `__all__` for an empty one.
"""

from collections.abc import Mapping
from types import ModuleType


def exported(namespace: Mapping[str, object]) -> list[str]:
    """Return the names that a module exports, sorted: no modules, nothing private, and not `TYPE_CHECKING`."""
    return sorted(
        name
        for name, value in namespace.items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "TYPE_CHECKING"
    )
