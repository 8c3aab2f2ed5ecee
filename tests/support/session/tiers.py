"""The tiers of tests, the folders with their defaults, and the plugin that selects a tier.

- *gate*: the tests that run before each push. Together they take at most 20 minutes on two cores.
- *full*: the matrices. `scripts/test --full` runs them, in parts.
- *lab*: what needs namespaces, Slurm, engines or a GPU and is not in the gate. `scripts/test --changed` runs them.

A test belongs to the tier that it is marked with, else its module, else its folder in `FOLDERS`. A parameter's marker
outweighs that of its test; where several parameters are marked, the last tier in the order above counts, so that a
product of two matrices has one case in the gate if each has one.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TIERS = ("gate", "full", "lab")


@dataclass(frozen=True)
class Folder:
    """A folder of tests below tests/, and what holds for the tests in it that no folder further down has."""

    name: str
    tier: str
    """The tier of tests without a marker of their own."""
    stream: str
    """The pytest session of the gate that runs them. Sessions run beside each other."""
    budget: float
    """Processor seconds that the tests of the gate may take, started processes included: half as many again as were
    seen in the gate, where two tests at a time disturb each other's caches."""
    rooms: tuple[str, ...]
    """The parts of the package that the tests are about, without the leading "distrun."; "" for all of it."""


COMPUTING = ("compute", "frameworks")
"""The streams whose tests compute most of the time; those of the others wait."""

FOLDERS = (
    Folder("unit", "gate", "compute", 115, ("",)),
    Folder("native", "lab", "compute", 30, ("native",)),
    Folder("parallel", "full", "compute", 120, ("runtime", "tensor_fusion", "tracing", "checkpoint")),
    Folder("parallel/collectives", "full", "compute", 245, ("runtime", "tensor_fusion")),
    Folder("parallel/failures", "full", "compute", 105, ("runtime", "host")),
    Folder("elastic", "full", "compute", 125, ("elastic", "contract", "runtime.world")),
    Folder("gpu", "full", "compute", 120, ("runtime.gpu", "runtime.world", "tensor_fusion", "host")),
    Folder("gpu/real", "lab", "compute", 5, ("runtime.gpu", "tensor_fusion")),
    Folder("frameworks/auto", "full", "frameworks", 260, ("auto",)),
    Folder("frameworks/auto/scripts", "full", "frameworks", 60, ("auto",)),
    Folder("frameworks/auto/situations", "full", "frameworks", 150, ("auto",)),
    Folder("frameworks/auto/situations/keras", "full", "frameworks", 5, ("auto",)),
    Folder("frameworks/data", "full", "frameworks", 65, ("data", "elastic")),
    Folder("frameworks/horovod", "full", "frameworks", 105, ("torch", "tensorflow", "keras", "elastic", "public")),
    Folder("frameworks/jax", "full", "frameworks", 105, ("jax", "graphs")),
    Folder("frameworks/keras", "full", "frameworks", 165, ("keras", "graphs")),
    Folder("frameworks/reports", "full", "frameworks", 5, ("torch_distributed", "torch", "elastic", "auto")),
    Folder("frameworks/servers", "full", "frameworks", 40, ("methods.servers", "torch", "keras")),
    Folder("frameworks/tensorflow", "full", "frameworks", 135, ("tensorflow", "graphs")),
    Folder("frameworks/torch", "full", "frameworks", 400, ("torch", "methods.diloco", "checkpoint")),
    Folder("frameworks/torch_distributed", "full", "frameworks", 165, ("torch_distributed",)),
    Folder("frameworks/trainers", "full", "frameworks", 120, ("torch_distributed", "lightning", "torch")),
    Folder("frameworks/types", "full", "frameworks", 5, ("torch", "data", "public")),
    Folder("processes", "full", "processes", 31, ("runner", "host")),
    Folder("processes/doctor", "full", "processes", 15, ("tools.doctor",)),
    Folder("processes/elastic", "full", "processes", 50, ("runner.elastic", "runner.decisions", "runner.agent")),
    Folder("processes/failures", "full", "processes", 100, ("runner.decisions", "runner.job", "methods.servers")),
    Folder("processes/from_python", "full", "processes", 25, ("runner.launch", "runner.job", "tools.notebook")),
    Folder("processes/kernel", "full", "processes", 3, ("runtime.transport", "host")),
    Folder("processes/launchers", "full", "processes", 80, ("runner",)),
    Folder("processes/observation", "full", "processes", 115, ("runner.observation", "tracing")),
    Folder("processes/shipping", "full", "processes", 10, ("runner.shipping",)),
    Folder("processes/sweep", "full", "processes", 40, ("tools.sweep", "runtime.collectives.trial")),
    Folder("hosts", "lab", "hosts", 140, ("runner", "runtime.transport")),
    Folder("hosts/elastic", "lab", "hosts", 120, ("runner.elastic", "tools.sweep")),
    Folder("hosts/links", "lab", "hosts", 50, ("runtime.transport", "runtime.negotiation", "methods.servers")),
    Folder("hosts/mpi", "lab", "hosts", 35, ("runtime.transport.mpi", "runner.hosts")),
    Folder("hosts/shipping", "lab", "hosts", 60, ("runner.shipping",)),
    Folder("slurm", "lab", "slurm", 100, ("runner.hosts", "runner.planning", "runner.elastic")),
    Folder("engines/kubernetes", "lab", "engines", 55, ("tools.kubernetes", "runner.hosts.joining")),
    Folder("engines/ray", "lab", "engines", 50, ("ray", "runner.hosts.joining")),
    Folder("engines/spark", "lab", "engines", 100, ("spark", "runner.hosts.joining")),
)


def folder_of(path: Path) -> Folder:
    """Return the innermost of `FOLDERS` that a file of tests lies in."""
    try:
        parts = path.relative_to(ROOT / "tests").parts
    except ValueError:
        parts = ()
    names = {folder.name: folder for folder in FOLDERS}
    for length in range(len(parts) - 1, 0, -1):
        if (found := names.get("/".join(parts[:length]))) is not None:
            return found
    raise pytest.UsageError(f"{path} lies in no folder that tests/support/session/tiers.py has")


def tier_of(item: pytest.Item) -> str:
    """Return the tier of a test."""
    call = getattr(item, "callspec", None)
    of_parameters = [mark.name for mark in call.marks if mark.name in TIERS] if call else []
    if of_parameters:
        return max(of_parameters, key=TIERS.index)
    own = next((mark.name for mark in item.iter_markers() if mark.name in TIERS), None)
    return own or folder_of(item.path).tier


def one_in_gate(*values: Any, chosen: int = 0) -> list[Any]:
    """Return parameters of which the one at index `chosen` keeps the tier of its test, and the others are full."""
    return [_parameter(value, index == chosen) for index, value in enumerate(values)]


def in_turn(*values: Any) -> list[Any]:
    """Return parameters of which one keeps the tier of its test, another one each day, and the others are full."""
    return one_in_gate(*values, chosen=datetime.date.today().timetuple().tm_yday % len(values))


def _parameter(value: Any, is_in_gate: bool) -> Any:
    if not isinstance(value, tuple) or not hasattr(value, "marks"):  # no pytest.param
        return pytest.param(value, marks=() if is_in_gate else pytest.mark.full)
    return value if is_in_gate else pytest.param(*value.values, marks=(*value.marks, pytest.mark.full), id=value.id)


class TierPlugin:
    """Deselects the tests of other tiers; without tiers, it selects everything."""

    def __init__(self, tiers: Sequence[str]) -> None:
        self._tiers = frozenset(tiers)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if not self._tiers:
            return
        chosen = {item: tier_of(item) in self._tiers for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not chosen[item]])
        items[:] = [item for item in items if chosen[item]]
