"""The modules that a spare imports in advance, which saves time when it becomes a rank."""

from __future__ import annotations

import sys


def imported() -> list[str]:
    """Return the installed modules that this process has imported, in the order of the imports.

    They are distrun's and those in site-packages, not the user's own. Subpackages are included, because some are
    imported late: the first optimizer imports torch._dynamo, which takes as long as torch. Modules in packages are left
    out, since most are imported with their package, and all of them would be a message of hundreds of kilobytes.
    """
    found = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        is_installed = "site-packages" in path and ("." not in name or hasattr(module, "__path__"))
        if (is_installed or name.partition(".")[0] == "distrun") and not name.startswith("_"):
            found.append(name)
    return found
