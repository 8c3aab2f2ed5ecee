"""The modules that a script imports before it does anything else, so that a spare may import them in advance.

A script may set environment variables before an import, such as the one that chooses Keras's backend. So only the
imports at its beginning count, up to the first other statement, or up to one of the user's own modules that looks as if
it might set a variable.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_SUSPECT = ("environ", "putenv", "set_start_method")


def first_imports(program: Sequence[str], wdir: str) -> list[str]:
    """Return the modules that a Python program imports first. Its own files are followed, but not returned.

    The program is `script.py args`, `-m module args` or `-c code args`, and runs in the directory `wdir`.
    """
    if program[0] == "-c":
        return list(dict.fromkeys(_Imports(wdir).of_source(program[1])))
    if program[0] == "-m":
        path = Path(wdir, *program[1].split(".")).with_suffix(".py")
        folder = wdir
    else:
        path = Path(wdir, program[0])
        folder = os.path.dirname(os.path.realpath(path))
    return list(dict.fromkeys(_Imports(folder).of_file(path)))


class _Imports:
    """Follows the imports from file to file."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._seen: set[Path] = set()
        self._stopped = False

    def of_file(self, path: Path) -> Iterator[str]:
        if path in self._seen:
            return
        self._seen.add(path)
        try:
            source = path.read_text()
        except (OSError, UnicodeDecodeError):
            return
        yield from self.of_source(source, len(self._seen) > 1)

    def of_source(self, source: str, is_own_module: bool = False) -> Iterator[str]:
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return
        for statement in tree.body:
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
                names = [statement.module]
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):  # a docstring
                continue
            else:
                break
            for name in names:
                yield from self._of_module(name)
                if self._stopped:
                    return
        # Whatever else one of the user's own modules does happens before the next import of the script.
        if is_own_module and any(word in source for word in _SUSPECT):
            self._stopped = True

    def _of_module(self, name: str) -> Iterator[str]:
        path = self._folder.joinpath(*name.split("."))
        own = next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
        if own is not None:
            yield from self.of_file(own)
        elif name != "__future__":
            yield name
