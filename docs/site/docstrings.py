"""An extension of griffe: completes the docstrings of collectives, as importing their modules does."""

from __future__ import annotations

from typing import Any

import griffe

from distrun.runtime.operations import docstrings

COMPLETED = f"{docstrings.__name__}.{docstrings.complete_all.__name__}"


class CompletedDocstrings(griffe.Extension):
    """Completes the docstrings of the modules that import `complete_all`."""

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Complete the docstrings of a module whose members are known."""
        if COMPLETED in mod.imports.values():
            for name in mod.exports or ():
                function = mod.members[str(name)]
                parameters = [parameter.name for parameter in function.parameters]
                function.docstring.value = docstrings.complete(str(name), parameters, function.docstring.value)
