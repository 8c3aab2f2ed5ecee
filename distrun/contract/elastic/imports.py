"""The modules that a spare should import, so that it need not when it becomes a rank."""

from __future__ import annotations

import sys


def imported() -> list[str]:
    """Return the modules that a spare should import too, in the order in which they were imported here.

    They are what is installed, not the user's own, and distrun's. Packages within packages are among them, for some are
    imported late: torch._dynamo by the first optimizer, which takes as long as torch. The modules in them are left out,
    since most come with their package, and all would be a message of hundreds of kilobytes.
    """
    found = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        is_installed = "site-packages" in path and ("." not in name or hasattr(module, "__path__"))
        if (is_installed or name.partition(".")[0] == "distrun") and not name.startswith("_"):
            found.append(name)
    return found
