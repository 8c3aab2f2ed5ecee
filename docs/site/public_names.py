"""Check that the site describes every public name: each of `__all__` must have a docstring, and a place in the reference."""

from __future__ import annotations

import re
import sys
import zlib
from functools import cache
from pathlib import Path

import griffe

REPOSITORY = Path(__file__).resolve().parents[2]
INVENTORY = REPOSITORY / "build" / "site" / "objects.inv"


def main() -> None:
    pages = (REPOSITORY / "docs" / "reference").glob("*.md")
    packages = re.findall(r"^::: (distrun[.\w]*)$", "\n".join(page.read_text() for page in pages), re.MULTILINE)
    missing = [line for package in sorted(packages) for line in complaints(package, described())]
    if missing:
        sys.exit("\n".join(missing))
    print(f"The reference describes every public name of {', '.join(sorted(packages))}.")


def complaints(package: str, names: set[str]) -> list[str]:
    """A line for each public name of a package that has no docstring, or is not among the names that are described."""
    lines = []
    for name in public_names(package):
        home = "distrun" if is_shared(package, name) else package
        if target(package, name) is None:
            lines.append(f"{package}.{name} cannot be found without running the code: import it under TYPE_CHECKING")
        elif not target(package, name).has_docstring:
            lines.append(f"{package}.{name} has no docstring")
        elif f"{home}.{name}" not in names:
            lines.append(f"{package}.{name} is not in the reference")
    return lines


def described() -> set[str]:
    """The names that the site describes, from the inventory that mkdocstrings writes for other sites (Sphinx's format)."""
    header, _, body = INVENTORY.read_bytes().partition(b"zlib.\n")
    return {line.split()[0] for line in zlib.decompress(body).decode().splitlines()}


@cache
def module(path: str) -> griffe.Module:
    """A module of the package, read from its source; nothing is imported."""
    package = griffe.load("distrun", search_paths=[str(REPOSITORY)], resolve_aliases=True)
    return package if path == "distrun" else package[path.removeprefix("distrun.")]


@cache
def public_names(package: str) -> list[str]:
    """What a package has in `__all__`, apart from names such as `__version__`."""
    return [str(name) for name in module(package).exports or () if not str(name).startswith("__")]


def is_shared(package: str, name: str) -> bool:
    """Whether `distrun` has the same object under the same name."""
    if package == "distrun" or name not in public_names("distrun"):
        return False
    return target(package, name) == target("distrun", name)


def target(package: str, name: str) -> griffe.Object | None:
    """What a public name stands for; None if it is made at run time."""
    member = module(package).members.get(name)
    return member.final_target if isinstance(member, griffe.Alias) else member


if __name__ == "__main__":
    main()
