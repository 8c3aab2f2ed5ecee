"""The place of a host in its job, and functions to read the variables that define it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distrun.errors import UsageError
from distrun.host.numerals import whole_number


@dataclass(frozen=True)
class HostPlace:
    """The place of one host in a job that a cluster has started."""

    cluster: str
    """The cluster's name in messages."""
    index: int
    """The number of this host. Host 0 is the leader, and has rank 0."""
    hosts: int
    """The number of hosts."""
    leader: str
    """The name or address that the other hosts use for host 0. It may be empty on host 0."""
    job: str
    """A text that is the same on all hosts of the job, and differs between jobs. It is not a secret."""

    def __post_init__(self) -> None:
        if self.index >= self.hosts:
            raise UsageError(
                f"{self.cluster} says that this is host {self.index} of {self.hosts}, which cannot be: pass on all of "
                "its variables as they are"
            )


def text(environ: Mapping[str, str], variable: str, cluster: str) -> str:
    """Return the value of a variable that the cluster sets.

    Raises:
        UsageError: it is not set.
    """
    if value := environ.get(variable):
        return value
    raise UsageError(
        f"{variable} is not set though this looks like a container of {cluster}: pass on all of its variables"
    )


def number(environ: Mapping[str, str], variable: str, cluster: str) -> int:
    """Return the value of a variable that the cluster sets to a whole number >= 0.

    Raises:
        UsageError: it is not set, or not such a number.
    """
    value = text(environ, variable, cluster)
    found = whole_number(value, 0, sys.maxsize)
    if found is not None:
        return found
    raise UsageError(f"{variable}={value!r} is not a whole number >= 0: let {cluster} set it")


def parse(value: str, name: str, cluster: str) -> Any:
    """Return the parsed JSON `value` of the variable or file `name` of the cluster.

    Raises:
        UsageError: the value is not JSON.
    """
    try:
        return json.loads(value)
    except ValueError:
        raise UsageError(f"{name}={value[:200]!r} is not JSON: let {cluster} set it") from None
