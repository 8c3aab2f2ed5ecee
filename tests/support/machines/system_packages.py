"""Programs that tests need and that come with packages of the system."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

PATH = "/usr/sbin:/sbin:" + os.environ.get("PATH", os.defpath)
_LOCK = Path("/run/lock/distrun-tests-apt")
# The system may be installing something by itself.
_INSTALL = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300")


def call(*command: str, check: bool = True) -> str:
    """Run a program of the system; return what it prints."""
    environ = {**os.environ, "PATH": PATH}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def why_missing(packages: Mapping[str, str]) -> str | None:
    """Return why the programs of some packages cannot be used here, or None.

    Where TEST_APT=1 is set they are installed first; sessions that run beside each other wait for each other.

    Args:
        packages: program -> the package that has it
    """
    if (os.environ.get("TEST_APT") == "1" or os.environ.get("CI")) and _absent(packages):
        with _LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if missing := _absent(packages):
                call("apt-get", "update", "-qq", check=False)
                call(*_INSTALL, *missing, check=False)
    if missing := _absent(packages):
        return f"{', '.join(missing)} are not installed; TEST_APT=1 installs them"
    return None


def _absent(packages: Mapping[str, str]) -> list[str]:
    return sorted({package for program, package in packages.items() if shutil.which(program, path=PATH) is None})
