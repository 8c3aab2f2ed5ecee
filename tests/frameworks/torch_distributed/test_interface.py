"""Each method of torch's `ProcessGroup` and each of its operators is known to work on the backend, or to be refused.

A torch that has another one fails here: put it into the right place. `scripts/features` writes the tables at the end of
docs/torch-distributed.md.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402

from distrun.torch_distributed.interface.group import REFUSED, NamedGroup  # noqa: E402
from distrun.torch_distributed.interface.operators import METHODS  # noqa: E402
from distrun.torch_distributed.process_group import DistrunProcessGroup  # noqa: E402

pytestmark = pytest.mark.gate
PAGE = Path(__file__).parents[3] / "docs" / "torch-distributed.md"
VERSION = ".".join(torch.__version__.split(".")[:2])
TITLE = "\n## Every method and operator\n"

CONSTANTS = {"BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL", "_pybind11_conduit_v1_"}
AS_IN_CPP = {
    "_get_backend_name", "_id", "_register_backend", "_set_default_backend", "_set_group_desc", "_set_group_name",
    "bound_device_id", "boxed", "name", "rank", "size", "unbox", "_enable_collectives_timing",
    "use_pg_for_symm_mem_rendezvous",
}  # fmt: skip
"""Methods that need nothing of a group in Python."""
BY_METHODS = {
    "allreduce_", "allreduce_coalesced_", "reduce_", "reduce_scatter_", "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_", "allgather_into_tensor_coalesced_", "check_for_nan",
}  # fmt: skip
"""Operators of c10d that C++ calls for no group of ours: it calls the methods."""
FUNCTIONAL = {
    "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather_into_tensor_out", "all_reduce",
    "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "all_to_all_single", "batch_p2p_ops", "broadcast",
    "broadcast_", "irecv", "isend", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_out", "wait_tensor", "_wrap_tensor_autograd",
}  # fmt: skip
KEEPING_WORKS = {"_register_work", "_set_forward_pass_work_handle"}
"""Functions of C++ that get a work from Python: `interface.operators` gives them one of C++'s."""


def operators(namespace: str) -> set[str]:
    names = map(str, torch._C._dispatch_get_all_op_names())
    return {name.split("::")[1].split(".")[0] for name in names if name.startswith(f"{namespace}::")}


def methods() -> set[str]:
    return {name for name in vars(dist.ProcessGroup) if not name.startswith("__") and name not in CONSTANTS}


def ours() -> set[str]:
    return {name for kind in DistrunProcessGroup.__mro__ if issubclass(kind, NamedGroup) for name in vars(kind)}


def rows(names: set[str], states: dict[str, set[str]]) -> list[str]:
    """Return the rows of a table: each name with its state, which holds for the names that `states` has under it."""
    told = {name: state for state, those in states.items() for name in those & names}
    return [f"| `{name}` | {told[name]} |" for name in sorted(told, key=lambda name: (name.strip("_").lower(), name))]


def tables() -> str:
    """Return the section of the page that has all of this torch."""
    importlib.import_module("torch.distributed._functional_collectives")  # which defines more operators
    states = {"torch's own": AS_IN_CPP, "works": ours() - set(REFUSED)}
    states |= {
        f"refused: {remedy}": {each for each in REFUSED if REFUSED[each] == remedy} for remedy in REFUSED.values()
    }
    lines = [
        TITLE,
        f"Of torch {VERSION}; written by `scripts/features`. What is torch's own needs nothing of a backend.\n",
        "| method of `ProcessGroup` | on distrun |",
        "| --- | --- |",
        *rows(methods(), states),
        "\n| operator `c10d::` | on distrun |",
        "| --- | --- |",
        *rows(operators("c10d"), {"works": set(METHODS), "not by itself: call the method": BY_METHODS}),
        "\n| operator `_c10d_functional::` | on distrun |",
        "| --- | --- |",
        *rows(operators("_c10d_functional"), {"works": FUNCTIONAL}),
    ]
    return "\n".join(lines) + "\n"


def test_each_method_of_a_group_is_ours_or_refused_or_needs_nothing_of_us():
    assert methods() - ours() - AS_IN_CPP == set()


def test_each_operator_is_served_or_needs_nothing_of_us():
    importlib.import_module("torch.distributed._functional_collectives")  # which defines more of them
    assert operators("c10d") - set(METHODS) - BY_METHODS == set()
    assert operators("_c10d_functional") - FUNCTIONAL == set()


def test_each_function_of_cpp_that_gets_a_work_is_given_one_of_cpps():
    found = set()
    for kind in [c10d, *(each for each in vars(c10d).values() if isinstance(each, type))]:
        for name, function in vars(kind).items():
            lines = (getattr(function, "__doc__", None) or "").splitlines()
            if any(line.startswith(f"{name}(") and "c10d::Work" in line.split("->")[0] for line in lines):
                found.add(name)
    assert found - KEEPING_WORKS == set()


def test_the_tables_in_the_documentation_are_those_of_the_lists(request):
    before, title, section = PAGE.read_text().partition(TITLE)
    if request.config.getoption("--write-features"):
        PAGE.write_text(before + tables())
        return
    found, expected = (title + section).splitlines(), tables().splitlines()
    if VERSION in found[3]:
        assert found == expected, "run scripts/features"
    else:
        states = dict(line.strip("| ").split(" | ", 1) for line in found if line.startswith("| `"))
        other = [line for line in expected if line.startswith("| `") and line not in found]
        assert [line for line in other if line.strip("| ").split(" | ")[0] in states] == []
