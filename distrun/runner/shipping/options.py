"""The command-line options of shipping, and their evaluation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distrun.contract.settings import START_TIMEOUT
from distrun.errors import UsageError
from distrun.runner.system.click_options import option

if TYPE_CHECKING:
    from distrun.runner.shipping.delivery import Delivery

DEFAULT_LIMIT = "512M"
LONG_START_TIMEOUT = 1800.0
"""Seconds that a host may take to start its ranks if it makes an environment first."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_NOT_ALONE = re.compile(r"\.|/+|~[^/]*|\.\.(/\.\.)*")
"""Folders that certainly hold more than code: the home, the folders above it, and the root."""

SHIPPING_OPTIONS = (
    option(
        "--ship ships DIR[:REMOTE]",
        "Bring a folder to the other hosts before the ranks start there: what has changed since the last time, "
        "and nothing that .gitignore leaves out. A job sees it as it was at the start, in a folder of its own; with "
        "REMOTE in that folder, which is kept.",
        multiple=True,
    ),
    option(
        "--ship-limit SIZE",
        "The most that a folder of --ship may have: 800M, 2G. Default: 512M.",
    ),
    option(
        "--bootstrap [=REQUIREMENTS]",
        "Run the ranks of other hosts in an environment that is made there, once, with these requirements: a "
        "requirements file, or packages as in --bootstrap=torch,numpy. Alone: what distrun itself needs.",
        is_flag=False,
        flag_value="",
    ),
    option("--no-bootstrap", "Do not bring distrun to hosts that have none, or another one: refuse them."),
)


def check_shipping(options: dict[str, Any]) -> None:
    """Check that the requested launcher supports shipping, and set the start timeout for making environments.

    Raises:
        UsageError: the launcher does not support it.
    """
    asked = "--ship" if options["ships"] else "--bootstrap" if options["bootstrap"] is not None else None
    if asked is None:
        return
    if options["launcher"] == "mpirun":
        raise UsageError(f"{asked} needs agents on the hosts, and --launcher mpirun has none: leave out one of the two")
    if options["nnodes"] is not None or options["rdzv_endpoint"] is not None:
        raise UsageError(
            f"{asked} brings things to hosts that one launcher reaches, and --nnodes starts a launcher on each: leave "
            "out one of the two"
        )
    if options["bootstrap"] is not None and options["start_timeout"] is None and START_TIMEOUT not in os.environ:
        options["start_timeout"] = LONG_START_TIMEOUT


def delivery(options: Mapping[str, Any], hosts_may_come: bool) -> Delivery | None:
    """Return the delivery that the options of the command line ask for, or None. See `deliver`."""
    if options["ship_limit"] is not None and not options["ships"]:
        raise UsageError(
            f"--ship-limit {options['ship_limit']} limits what --ship brings, and nothing is shipped: give --ship DIR "
            "too"
        )
    if not options["ships"] and options["bootstrap"] is None and not options["no_bootstrap"]:
        return None
    return deliver(
        options["ships"],
        options["bootstrap"],
        limit=options["ship_limit"] or DEFAULT_LIMIT,
        brings_itself=not options["no_bootstrap"],
        hosts_may_come=hosts_may_come,
    )


def deliver(
    ships: Sequence[str] = (),
    bootstrap: str | None = None,
    limit: str = DEFAULT_LIMIT,
    brings_itself: bool = True,
    hosts_may_come: bool = False,
) -> Delivery:
    """Return the delivery of a launch.

    Args:
        ships: folders, as in `--ship`.
        bootstrap: the value of `--bootstrap`. None = no environment.
        limit: the largest size of a folder, as in `--ship-limit`.
        brings_itself: whether distrun is brought where it is missing.
        hosts_may_come: whether hosts may join the job later, which then get the folders in their present state.

    Raises:
        UsageError: a value is not valid, or a folder or file cannot be read.
    """
    if bootstrap is not None and not brings_itself:
        raise UsageError("--bootstrap makes an environment with distrun in it, which --no-bootstrap forbids: give one")
    from distrun.runner.shipping.delivery import Delivery
    from distrun.runner.shipping.requirements import requirements
    from distrun.runner.shipping.snapshot import keep, take

    most = parse_size(limit)
    parsed = [parse_ship(value) for value in ships]
    _check_targets(parsed)
    snapshots = tuple(take(folder, to, most) for folder, to in parsed)
    if hosts_may_come:
        snapshots = tuple(map(keep, snapshots))
    folders = [item.folder for item in snapshots]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UsageError(f"--ship {folder} is given twice: give it once")
    # A spare replaces a path by the first folder that holds it, so an inner folder must come before an outer one.
    snapshots = tuple(sorted(snapshots, key=lambda item: -len(item.folder)))
    return Delivery(brings_itself, None if bootstrap is None else requirements(bootstrap), snapshots)


def parse_ship(value: str) -> tuple[str, str]:
    """Return the folder on this machine and the folder on hosts, which is empty if not given.

    Raises:
        UsageError: the folder does not exist, or the target holds more than code.
    """
    # .    ~/project    project:/scratch/me/project    project:work    (a path below the home there)
    here, to = (value, "") if os.path.isdir(value) else value.rpartition(":")[::2]
    here = os.path.expanduser(here or value)
    if not os.path.isdir(here):
        raise UsageError(f"--ship {value!r}: {here!r} is not a folder: give one, as in --ship . or --ship DIR:REMOTE")
    if to and _NOT_ALONE.fullmatch(os.path.normpath(to)):
        raise UsageError(f"--ship {value!r}: {to!r} is not a folder for code alone: give one below it")
    return here, to


def _check_targets(parsed: Sequence[tuple[str, str]]) -> None:
    """Refuse two folders with one target on hosts, where they would delete each other's files."""
    seen: dict[str, str] = {}
    for here, to in parsed:
        place = os.path.normpath(to.removeprefix("~/")) if to else ""
        if place and place in seen:
            raise UsageError(f"--ship {seen[place]}:{to} and --ship {here}:{to} name one folder: give each its own")
        seen[place] = here


def parse_size(text: str) -> int:
    """Return a number of bytes. Raises UsageError: the text is not a size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"--ship-limit {text!r} is no size: give a number of bytes, or one with K, M or G, as in 2G")
    return int(float(match[1]) * _UNITS[match[2].upper()])
