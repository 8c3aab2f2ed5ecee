"""The folders of tests that a change concerns, by the imports of the package.

A changed file of distrun/ concerns its own module and those that import it directly, and so the folders of
`tiers.FOLDERS` that are about one of their rooms. A changed file of tests/ concerns its folder; a test module only
itself; a module of tests/support the folders with a file that names it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from parts import is_near
from session.tiers import FOLDERS, ROOT, Folder, folder_of


@dataclass(frozen=True)
class Concerned:
    """Folders with all their tests, and test modules of other folders."""

    folders: tuple[Folder, ...]
    modules: tuple[Path, ...]


def paths(revision: str) -> list[Path]:
    """Return the files that differ from a revision, untracked ones included, relative to the repository."""
    differing = ("git", "diff", "--name-only", revision)
    untracked = ("git", "ls-files", "--others", "--exclude-standard")
    return sorted(
        Path(line)
        for words in (differing, untracked)
        for line in subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    )


def concerned(changed: Iterable[Path], importers: Callable[[str], Iterable[str]]) -> Concerned:
    """Return what changed files concern.

    Args:
        changed: paths relative to the repository.
        importers: gives the modules that import a module directly, by dotted names.
    """
    rooms: set[str] = set()
    folders: set[Folder] = set()
    modules: set[Path] = set()
    for path in changed:
        if path.parts[0] == "distrun":
            module = module_of(path)
            rooms |= {name.removeprefix("distrun").lstrip(".") for name in (module, *importers(module))}
        elif path.parts[:2] == ("tests", "support"):
            folders |= set(_folders_that_name(path))
        elif path.parts[0] == "tests" and len(path.parts) > 2:
            if path.name.startswith("test_"):
                modules |= {path} if (ROOT / path).exists() else set()
            else:
                folders.add(folder_of(ROOT / path))
    for room in rooms:
        folders |= {folder for folder in FOLDERS if any(is_near(room, name) for name in folder.rooms)}
    alone = (path for path in modules if folder_of(ROOT / path) not in folders)
    return Concerned(tuple(folder for folder in FOLDERS if folder in folders), tuple(sorted(alone)))


def module_of(path: Path) -> str:
    """Return the dotted name of a module of distrun/, or of the package that another file lies in."""
    parts = path.with_suffix("").parts if path.suffix == ".py" else path.parent.parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def direct_importers() -> Callable[[str], Iterable[str]]:
    """Return a function for the modules that import a module directly, within functions too."""
    import grimp

    graph = grimp.build_graph("distrun")
    return lambda module: graph.find_modules_that_directly_import(module) if module in graph.modules else ()


def _folders_that_name(support: Path) -> Iterable[Folder]:
    """Return the folders with a file that names a module of tests/support, or the package that it lies in."""
    name = re.compile(rf"\b{re.escape(support.parts[2].removesuffix('.py'))}\b")
    for path in (ROOT / "tests").rglob("*.py"):
        relative = path.relative_to(ROOT / "tests").parts
        if relative[0] == "support" or not name.search(path.read_text()):
            continue
        if len(relative) == 1:  # tests/conftest.py, which serves them all
            yield from FOLDERS
        else:
            yield folder_of(path)
