"""Each method of torch's `ProcessGroup` and each of its operators is known to work on the backend, or to be refused.

A torch that has another one fails here: put it into the right place, and into the table in docs/torch-distributed.md.
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
DOCS = (Path(__file__).parents[3] / "docs" / "torch-distributed.md").read_text()

AS_IN_CPP = {
    "BackendType", "CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL", "_get_backend_name", "_id",
    "_register_backend", "_set_default_backend", "_set_group_desc", "_set_group_name", "bound_device_id", "boxed",
    "name", "rank", "size", "unbox", "_enable_collectives_timing", "use_pg_for_symm_mem_rendezvous",
    "_pybind11_conduit_v1_",
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
"""Functions of C++ that get a work from Python: `interface.functions` gives them one of C++'s."""


def operators(namespace: str) -> set[str]:
    names = map(str, torch._C._dispatch_get_all_op_names())
    return {name.split("::")[1].split(".")[0] for name in names if name.startswith(f"{namespace}::")}


def test_each_method_of_a_group_is_ours_or_refused_or_needs_nothing_of_us():
    theirs = {name for name in vars(dist.ProcessGroup) if not name.startswith("__")}
    ours = {name for kind in DistrunProcessGroup.__mro__ if issubclass(kind, NamedGroup) for name in vars(kind)}
    assert theirs - ours - AS_IN_CPP == set()


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


def test_the_table_in_the_documentation_has_what_is_refused():
    assert {name for name in REFUSED if f"`{name}`" not in DOCS} == {"mergeRemoteGroup"}  # as C++ calls it
