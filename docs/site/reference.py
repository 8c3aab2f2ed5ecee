"""The reference of a package, for mkdocstrings: its public names, each of which must have a docstring.

The source is read, not run: no framework is imported.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import griffe

REPOSITORY = Path(__file__).resolve().parents[2]
LINE = re.compile(r"^::: (?P<package>distrun[.\w]*)$", re.MULTILINE)


def expanded(text: str, source: str, broken: list[str]) -> str:
    """The text of a page with its lines `::: package` expanded. What the reference would lack is added to `broken`."""
    packages = [line["package"] for line in LINE.finditer(text)]

    def replaced(line: re.Match[str]) -> str:
        broken.extend(f"{source}: {complaint}" for complaint in complaints(line["package"], packages))
        return sections(line["package"])

    return LINE.sub(replaced, text)


def sections(package: str) -> str:
    """The lines by which mkdocstrings shows a package, without the names that `distrun` has as well."""
    own, shared = [], []
    for name in public_names(package):
        (shared if is_shared(package, name) else own).append(name)
    lines = [f"::: {package}", "    options:", f"      members: [{', '.join(own)}]"]
    if shared:
        links = ", ".join(f"[`{name}`](distrun.md#distrun.{name})" for name in shared)
        lines += ["", "## As in `distrun`", "", f"The same as in [`distrun`](distrun.md): {links}."]
    return "\n".join(lines)


def complaints(package: str, packages: list[str]) -> list[str]:
    """A sentence for each public name that mkdocstrings would not show; `packages` are those on the same page."""
    found = []
    for name in public_names(package):
        member = target(package, name)
        if member is None:
            found.append(f"{package}.{name} is made at run time: import it under TYPE_CHECKING, too")
        elif not member.has_docstring:
            found.append(f"{package}.{name} has no docstring")
        elif member.is_module and f"{package}.{name}" not in packages:
            found.append(f"{package}.{name} is a module: give it a line `::: {package}.{name}`")
    return found or ([] if public_names(package) else [f"{package} has no public names: import them as `x as x`"])


def is_shared(package: str, name: str) -> bool:
    """Whether `distrun` has the same object under the same name."""
    if package == "distrun" or name not in public_names("distrun"):
        return False
    return target(package, name) == target("distrun", name)


def target(package: str, name: str) -> griffe.Object | None:
    """The object that a public name stands for; None if only running the code can tell."""
    member = module(package).members.get(name)
    try:
        return member.final_target if isinstance(member, griffe.Alias) else member
    except griffe.AliasResolutionError:
        return None


@cache
def public_names(package: str) -> list[str]:
    """The names that a module passes on: those in its `__all__` or, without one, in `import x as x` and `import *`."""
    if module(package).exports:
        return [str(name) for name in module(package).exports or ()]
    names = set()
    for node in ast.walk(ast.parse(Path(str(module(package).filepath)).read_text())):
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if alias.name == "*":
                names.update(public_names(str(node.module)))
            elif alias.name == alias.asname:
                names.add(alias.name)
    return sorted(names)


@cache
def module(path: str) -> griffe.Module:
    """A module of distrun, from its source."""
    return distrun() if path == "distrun" else distrun()[path.removeprefix("distrun.")]


@cache
def distrun() -> griffe.Module:
    """All of distrun, from its source."""
    return griffe.load("distrun", search_paths=[str(REPOSITORY)], resolve_aliases=True)
