"""torch's operators `c10d::*` for our groups.

Most of C++ calls the methods of a process group, and so ours. Some of it, as `all_gather_into_tensor` with an output
that is given, calls operators instead, whose kernels look for a backend in C++, which a group in Python has not. So
when the first of our groups is made, these kernels are replaced by ones that call the methods in Python, of our groups
and of the backends of others. What was called through an operator returns a work of C++'s.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d

from distrun.torch_distributed.interface.uncompiled import leave_uncompiled

Kind = type[Any]

METHODS: dict[str, tuple[str, type[Any] | None]] = {
    "broadcast_": ("broadcast", c10d.BroadcastOptions),
    "allgather_": ("allgather", c10d.AllgatherOptions),
    "_allgather_base_": ("_allgather_base", c10d.AllgatherOptions),
    "allgather_coalesced_": ("allgather_coalesced", c10d.AllgatherOptions),
    "gather_": ("gather", c10d.GatherOptions),
    "scatter_": ("scatter", c10d.ScatterOptions),
    "alltoall_": ("alltoall", c10d.AllToAllOptions),
    "alltoall_base_": ("alltoall_base", c10d.AllToAllOptions),
    "barrier": ("barrier", c10d.BarrierOptions),
    "monitored_barrier_": ("monitored_barrier", None),
    "send": ("send", None),
    "recv_": ("recv", None),
    "recv_any_source_": ("recv_anysource", None),
}
"""The operators that our groups serve, each with the method that it calls and the options of that. Reductions are not
among them: C++ calls our methods for these, and the factor of a `PREMUL_SUM` would be lost."""

_ATTRIBUTES = {
    "root_rank": "rootRank",
    "root_tensor": "rootTensor",
    "async_op": "asyncOp",
    "device_ids": "device_ids",
}
_DEVICES = ("CPU", "CUDA")

# What they register goes with them.
_libraries: list[torch.library.Library] = []


def serve_operators(kind: Kind) -> None:
    """Have the operators take groups of `kind`; does nothing in a torch that cannot call the kernels it had."""
    if _libraries or not hasattr(torch.library, "get_kernel"):
        return
    for name in METHODS:
        _replace("c10d", name, lambda device, theirs, name=name: _kernel(name, device))  # type: ignore[misc]
    _replace("_c10d_functional", "batch_p2p_ops", functools.partial(_batch, kind))


def _replace(namespace: str, name: str, make: Callable[[torch.device, Any], Callable[..., Any]]) -> None:
    """Replace the kernels of an operator, if torch has it, by what `make` returns for a device and torch's kernel."""
    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    for key in _DEVICES:
        try:
            theirs = torch.library.get_kernel(f"{namespace}::{name}", key)
        except RuntimeError:  # there is none
            continue
        ours = leave_uncompiled(make(torch.device(key.lower()), theirs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is replaced
            library.impl(name, ours, key, with_keyset=True, allow_override=True)  # type: ignore[no-untyped-call]


def _kernel(operator: str, device: torch.device) -> Callable[..., Any]:
    """Return a kernel that calls the method of the backend of a group, as torch's does; ours are their own backends.

    It must not call torch's kernel: that would hold Python's lock, for which threads of gloo may wait.
    """
    method, options = METHODS[operator]
    schema = torch._C._get_schema(f"c10d::{operator}", "")
    names = [argument.name for argument in schema.arguments]
    place = names.index("process_group")

    def kernel(keys: Any, *args: Any) -> Any:
        call = getattr(dist.ProcessGroup.unbox(args[place])._get_backend(device), method)
        others = dict(zip(names[place + 1 :], args[place + 1 :], strict=False))
        if operator == "monitored_barrier_":
            milliseconds = others["timeout"]
            return call(timedelta(milliseconds=max(milliseconds, 0)), others["wait_all_ranks"])
        tensors = () if operator == "barrier" else args[:place]
        if options is None:
            work = call(*tensors, *others.values())
        else:
            splits = [others[each] for each in names if each.endswith("_split_sizes")]
            work = call(*tensors, *splits, _options(options, others))
        return (args[0], work.boxed()) if len(schema.returns) > 1 else work.boxed()

    return kernel


def _options(kind: type[Any], arguments: Mapping[str, Any]) -> Any:
    options = kind()
    for name, attribute in _ATTRIBUTES.items():
        if name in arguments and hasattr(options, attribute):
            setattr(options, attribute, arguments[name])
    if arguments.get("timeout", -1) >= 0:
        options.timeout = timedelta(milliseconds=arguments["timeout"])
    return options


def _batch(kind: Kind, device: torch.device, theirs: Any) -> Callable[..., Any]:
    """Return a kernel of `batch_p2p_ops`, which asks C++ whether the backend coalesces messages: ours does not."""
    functional = torch.ops._c10d_functional

    def kernel(
        keys: Any, ops: list[str], peers: list[int], tags: list[int], tensors: list[torch.Tensor], name: Any
    ) -> Any:
        group = c10d._resolve_process_group(name)
        if not isinstance(group, kind) and group._get_backend(device).supports_coalescing:
            return theirs.call_boxed(keys, ops, peers, tags, tensors, name)
        return [
            getattr(functional, op)(tensor, peer, tag, name)
            for op, peer, tag, tensor in zip(ops, peers, tags, tensors, strict=True)
        ]

    return kernel
