"""Preparing a pod with what was brought to it, before its process becomes `distrun agent`."""

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
    """The pod's log in the place of a launcher, which nobody is yet."""

    def tell(self, **said: Any) -> None:
        """Write what is going on."""
        print(f"distrun: {said['step']}", file=sys.stderr, flush=True)

    def refuse(self, problem: str) -> NoReturn:
        """Write why this pod cannot be used, and leave."""
        sys.exit(f"distrun: {problem}")


def main(wdir: str | None, requirements: list[str] | None) -> NoReturn:
    """Put on the search path what was brought, and become `distrun` with the arguments of this process.

    Args:
        wdir: the directory to work in. None = the present one.
        requirements: those of an environment to make, which sees the image's packages. None = there is none to make.
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
    """Return the Python of an environment, whose programs are the first to be found."""
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
    """Refuse an image that lacks what cannot be brought."""
    remedy = "put it into the image, or give --bootstrap, which installs it in each pod"
    try:
        importlib.import_module("psutil")
    except Exception as error:  # built for another machine or another C library
        sys.exit(
            f"distrun: psutil, which distrun needs, is not in the image, and ours does not run ({error}); {remedy}"
        )
    if int(os.environ[HOSTS]) > 1 and not located("cryptography"):
        sys.exit(f"distrun: cryptography, by which pods encrypt what they say, is not in the image: {remedy}")
