"""Training jobs of Amazon SageMaker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distrun.errors import UsageError
from distrun.host.clusters.place import HostPlace, parse

# SageMaker's training toolkit sets variables. A custom container only has the file, and the name of the job:
# SM_HOSTS=["algo-1","algo-2"] SM_CURRENT_HOST=algo-1 TRAINING_JOB_NAME=digits-2026-03-01-10-11-12-345 {"current_host":
# "algo-1", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0", ...}
_HOSTS = "SM_HOSTS"
_HERE = "SM_CURRENT_HOST"
_JOB = "TRAINING_JOB_NAME"
_FILE = Path("/opt/ml/input/config/resourceconfig.json")
_NAME = "SageMaker"


def read(environ: Mapping[str, str], file: Path = _FILE) -> HostPlace | None:
    """Return the place of this instance, or None outside of SageMaker's training jobs.

    Raises:
        UsageError: the list of hosts is invalid, or this host is not in it.
    """
    if _HOSTS in environ and _HERE in environ:
        listed: Any = parse(environ[_HOSTS], _HOSTS, _NAME)
        here: Any = environ[_HERE]
        source = f"{_HOSTS}={environ[_HOSTS]!r}"
    elif _JOB in environ and file.is_file():
        config = parse(file.read_text(), str(file), _NAME)
        listed, here = (config.get("hosts"), config.get("current_host")) if isinstance(config, dict) else (None, None)
        source = f"{file}: {config!r}"
    else:
        return None
    if not isinstance(listed, list) or here not in listed or not all(isinstance(name, str) for name in listed):
        raise UsageError(f"{source} is not a list of hosts with this one ({here!r}) in it: let {_NAME} set it")
    hosts = sorted(listed, key=_natural)
    return HostPlace(_NAME, hosts.index(here), len(hosts), hosts[0], f"{environ.get(_JOB, '')}.{hosts[0]}")


def _natural(name: str) -> list[Any]:
    """Return the sort key of `name`, which puts algo-2 before algo-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
