"""The reference of packages: the public names of each, in groups, each of which must have a docstring.

The source is read, not run: no framework is imported.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import griffe
import rendering

REPOSITORY = Path(__file__).resolve().parents[2]
GROUPS = {
    "Training": r"Distributed|Partial|Async|DiLoCo|LocalSGD|SyncBatch|(value_and_)?grad$|load_model|"
    r"distributed_sampler|broadcast_(parameters|optimizer|variables|global)|BroadcastGlobal|Compression|"
    r"ErrorFeedback|Coordinator",
    "Ranks": r"init|shutdown|is_|on_rank_zero|(cross_|local_)?(rank|size)|device$|topology|restart",
    "Collectives": r"(sparse_|grouped_)?(allreduce|reducescatter|allgather|broadcast|alltoall)|barrier|join|empty|"
    r"Handle|synchronize|poll",
    "Reductions": r"(Average|Sum|Min|Max|Product|Adasum)$",
    "Process sets": r"(add_|remove_|global_)?process_set|ProcessSet",
    "Running functions, trials and measuring": r"run|report|autotuned|Tuned|communication_memory|(start|stop)_timeline|"
    r"install_as",
    "Errors": r"\w*Error$|TrialPruned",
    "Horovod's questions": r"\w+_(built|enabled|supported)$",
}
"""The groups of a large package: patterns of the beginnings of names. The first that fits counts."""
FEW = 9
"""The number of names up to which a package needs no groups."""

FOR_MAINTAINERS = "\n\nThe room:"
"""The beginning of the part of a module's docstring that says how it is built, which users need not read."""

_FORM = re.compile(r"(?:grouped_)?(?P<base>[a-z]+?)(?:_async)?_?")


def described(package: str, level: int) -> str:
    """The public names of a package as Markdown. Those that `distrun` has as well are links to its page."""
    own = [name for name in public_names(package) if not is_shared(package, name)]
    own = [name for name in own if not found(package, name).is_module]
    introduction = rendering.highlighted(module(package).docstring.value.partition(FOR_MAINTAINERS)[0])
    if len(own) <= FEW:
        return "\n\n".join([introduction, *entries(package, own, level)])
    parts = [introduction]
    for title, pattern in GROUPS.items():
        names = [name for name in own if re.match(pattern, name)]
        own = [name for name in own if name not in names]
        if names:
            parts += [f"{'#' * level} {title}", *entries(package, names, level + 1)]
    if own:
        raise ValueError(f"docs/site/reference.py has no group for {', '.join(own)} of {package}")
    if shared := [name for name in public_names(package) if is_shared(package, name)]:
        links = ", ".join(f"[`{name}`](distrun.md#{anchor(name)})" for name in shared)
        parts += [f"{'#' * level} As in distrun", rendering.filled(f"As in [`distrun`](distrun.md): {links}.", "")]
    return "\n\n".join(parts)


def entries(package: str, names: list[str], level: int) -> list[str]:
    """The entries of names: the forms of a collective in one, constants and one-line functions as a list."""
    families: dict[str, list[tuple[str, griffe.Object]]] = {}
    lines = []
    for name in names:
        member = found(package, name)
        if member.is_attribute or rendering.ONE_LINE.search(name):
            lines.append(rendering.line(name, member))
        else:
            form = _FORM.fullmatch(name)
            base = form["base"] if form and form["base"] in names else name
            families.setdefault(base, []).append((name, member))
    listed = ["\n".join(lines)] if lines else []
    return [*listed, *(rendering.entry(name, forms, level) for name, forms in families.items())]


def anchor(name: str) -> str:
    """The place of a name on the page of `distrun`: its heading, or that of its group if it is one of a list."""
    member = found("distrun", name)
    if not member.is_attribute:
        return name.lower()
    title = next(title for title, pattern in GROUPS.items() if re.match(pattern, name))
    return title.lower().replace(" ", "-").replace(",", "")


def found(package: str, name: str) -> griffe.Object:
    """The object that a public name stands for, of which `complaints` has none."""
    member = target(package, name)
    assert member is not None, f"{package}.{name}"
    return member


def complaints(package: str, packages: list[str]) -> list[str]:
    """A sentence for each public name that the reference would lack; `packages` are those that it has."""
    said = []
    for name in public_names(package):
        member = target(package, name)
        if member is None:
            said.append(f"{package}.{name} is made at run time: import it under TYPE_CHECKING, too")
        elif not member.has_docstring:
            said.append(f"{package}.{name} has no docstring")
        elif member.is_module and f"{package}.{name}" not in packages:
            said.append(f"{package}.{name} is a module: give it a part of its own, with `reference: {package}.{name}`")
    return said or ([] if public_names(package) else [f"{package} has no public names: import them as `x as x`"])


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
