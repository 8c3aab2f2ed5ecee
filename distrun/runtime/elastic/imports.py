"""The modules that a spare should import, so that it need not when it becomes a rank."""

from __future__ import annotations

import sys


def imported() -> list[str]:
    """Return the modules that a spare should import too, in the order in which they were imported here.

    They are the top-level packages that are installed, not the user's own, and those of distrun.
    """
    found = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        is_installed = "." not in name and "site-packages" in path
        if (is_installed or name.partition(".")[0] == "distrun") and not name.startswith("_"):
            found.append(name)
    return found
