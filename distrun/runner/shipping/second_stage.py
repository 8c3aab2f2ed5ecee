"""The second program on another host, run by the first if something is missing: it requests that from the launcher.

It is sent as text, since distrun may be missing, and runs in a namespace that has the contents of `cache` and `COUNTED`
already. When distrun is in the cache, the modules for the rest are imported from there.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __name__ != "distrun_second_stage":
    from distrun.runner.shipping.cache import (
        CacheError,
        by_last_use,
        discard,
        discard_unused,
        explain,
        fill,
        hold,
        open_cache,
    )
    from distrun.runner.shipping.first_stage import COUNTED, Launcher

_SHIPPED = "DISTRUN_SHIPPED"  # as in contract.launch
_KEPT = 8  # the most recently used packages that stay in the cache

Comparison = Callable[[str, str], bool]


def prepare(
    launcher: Launcher, sent: dict[str, Any], module: str, is_same: bool, lacks: list[str], is_intact: Comparison
) -> None:
    """Bring what is missing, and put it on the search path. With an environment, continue in the environment's Python.

    Args:
        sent: the launcher's object. See `first_stage.main`.
        module: the name of the module that will run.
        is_same: whether the distrun that can be imported is the launcher's.
        lacks: the packages that distrun needs and that cannot be imported.
        is_intact: `first_stage.is_intact`.
    """
    tasks, cache = sent["tasks"], ""
    requirements = tasks.get("requirements")
    paths: list[str] = []
    try:
        cache = open_cache(os.environ)
        if requirements is not None or not is_same:
            paths.append(_brought(launcher, cache, "distrun", sent["package"], is_intact))
            sys.path[:0] = paths
        for name in lacks if requirements is None else ():
            path = _brought(launcher, cache, name, sent["needs"][name], is_intact)
            sys.path.append(path)
            paths.append(path)
            _check_import(launcher, name)
        importlib.invalidate_caches()
        shipped: dict[str, Any] = {"path": paths, "trees": []}
        for number, tree in enumerate(tasks.get("trees", ())):
            from distrun.runner.shipping.trees import receive

            place = receive(launcher, cache, number, tree)
            shipped["trees"] += [[name, place] for name in tree["names"]]
        os.environ[_SHIPPED] = json.dumps(shipped)
        launcher.tell(paths=paths)
        if requirements is not None:
            from distrun.runner.shipping.environment import go_on_in, make

            python = make(launcher, cache, requirements)
            launcher.tell(paths=paths, python=python)
            go_on_in(python, paths, module)
    except CacheError as error:
        launcher.refuse(str(error))
    except OSError as error:
        launcher.refuse(explain(error, cache))


def _brought(launcher: Launcher, cache: str, name: str, wanted: str, is_intact: Comparison) -> str:
    """Return the folder of the cache with a package, which is requested if it is missing or damaged.

    Other launches, on all hosts that share the cache, may do the same at this moment. A package that one of them has
    brought stays, since it may be importing it.
    """
    place = os.path.join(cache, "packages", wanted)
    folder = os.path.join(place, name)
    hold(place)  # before the check: otherwise another launch might delete it as unused after the check
    if not is_intact(folder, wanted):
        packed = launcher.ask(ask="package", name=name)

        def write(half: str) -> None:
            _unpack(packed, name, half)
            if os.path.lexists(place) and not is_intact(folder, wanted):
                discard(place)  # as late as possible, to keep the gap small until the new one is in its place

        fill(place, write)
        if not is_intact(folder, wanted):
            discard(place)
            launcher.refuse(
                f"the package {name} was damaged on its way or while it was written to {place}: try again, or delete "
                "that there first"
            )
        for _, unused in by_last_use(os.path.dirname(place))[_KEPT:]:
            discard_unused(unused)
        hold(place)
    return place


def _unpack(packed: bytes, name: str, folder: str) -> None:
    """Unpack only the files of a package that its digest covers: others could have been added on the way."""
    with zipfile.ZipFile(io.BytesIO(packed)) as file:
        for entry in file.namelist():
            parts = entry.split("/")
            if parts[0] == name and "__pycache__" not in parts and entry.endswith(COUNTED):
                file.extract(entry, folder)


def _check_import(launcher: Launcher, name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:  # built for another machine or another Python
        launcher.refuse(
            f"{name}, which distrun needs, is not installed for {sys.executable}, and this machine's does not run "
            f"there ({error}); install it there, or let --bootstrap make an environment with it"
        )
