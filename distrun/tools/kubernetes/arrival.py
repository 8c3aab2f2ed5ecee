"""Preparing a pod with the files of its bundle, before its process becomes `distrun agent`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, NoReturn

from distrun.host.clusters.kubernetes import HOSTS
from distrun.runner.shipping.cache import CacheError, explain, open_cache
from distrun.runner.shipping.environment import make
from distrun.runner.shipping.first_stage import Launcher, located

_AGENT = "import sys; sys.path = [p for p in sys.path if p]; from distrun.cli import main; main()"
_SITES = ("site-packages", "dist-packages")


class _Log(Launcher):
    """The pod's log in the place of a launcher, as no launcher is connected yet."""

    def tell(self, **said: Any) -> None:
        """Write the step that begins."""
        print(f"distrun: {said['step']}", file=sys.stderr, flush=True)

    def refuse(self, problem: str) -> NoReturn:
        """Write why this pod cannot be used, and exit."""
        sys.exit(f"distrun: {problem}")


def main(wdir: str | None, requirements: list[str] | None) -> NoReturn:
    """Put the bundle's packages on the search path, and become `distrun` with the arguments of this process.

    Args:
        wdir: the working directory. None = the current one.
        requirements: the requirements of an environment to create, which sees the image's packages. None = no
            environment.
    """
    package = sys.path[0]
    path = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if requirements is not None:
        python = _environment(requirements)
    else:
        python = sys.executable
        needs = os.path.join(os.path.dirname(package), "needs")
        lacks = [os.path.join(needs, name) for name in sorted(os.listdir(needs)) if not located(name)]
        sys.path += lacks
        path += lacks
        _check_needs()
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    try:
        os.chdir(wdir or ".")
    except OSError as error:
        sys.exit(f"distrun: {wdir} cannot be the working directory: {error.strerror}; give another --wdir")
    os.execv(python, [python, "-c", _AGENT, *sys.argv[1:]])


def _environment(requirements: list[str]) -> str:
    """Create an environment, put its programs first on PATH, and return its Python."""
    cache = ""
    try:
        cache = open_cache(os.environ)
        python = make(_Log(), cache, requirements, [entry for entry in sys.path if entry.endswith(_SITES)])
    except CacheError as error:
        sys.exit(f"distrun: {error}")
    except OSError as error:
        sys.exit(f"distrun: {explain(error, cache)}")
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(python), os.environ.get("PATH", os.defpath)])
    return python


def _check_needs() -> None:
    """Refuse an image without the compiled packages that the bundle cannot provide for it."""
    remedy = "put it into the image, or give --bootstrap, which installs it in each pod"
    try:
        importlib.import_module("psutil")
    except Exception as error:  # built for another machine or another C library
        sys.exit(
            f"distrun: psutil, which distrun needs, is not in the image, and ours does not run ({error}); {remedy}"
        )
    if int(os.environ[HOSTS]) > 1 and not located("cryptography"):
        sys.exit(f"distrun: cryptography, by which pods encrypt what they say, is not in the image: {remedy}")
