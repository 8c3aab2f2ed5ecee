"""torch's operators `c10d::*` and functions of torch.distributed for distrun's groups.

Most C++ code calls the methods of a process group, which Python can override. Some of it, such as
`all_gather_into_tensor` with a given output, calls operators instead, whose kernels look for a backend in C++, and a
group in Python has none. So when the first such group is made, these kernels are replaced by kernels that call the
methods in Python: of distrun's groups, and of the backends of other groups. A call through an operator returns a C++
work.

Functions are replaced that would refuse distrun's groups, or hand their works to C++; for other groups they call
torch's. `monitored_barrier` and `_set_pg_timeout` only know the groups of gloo and NCCL. `_register_work` and the
reducer of DDP keep a work in C++.
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
from torch.distributed import distributed_c10d

from distrun.torch_distributed.interface.native_work import leave_uncompiled, waiting, with_future

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
"""The operators to replace, each with the method that it calls and the class of the method's options. Reductions are
not
among them: C++ calls the methods for these, and an operator would lose the factor of a `PREMUL_SUM`."""

_ATTRIBUTES = {
    "root_rank": "rootRank",
    "root_tensor": "rootTensor",
    "async_op": "asyncOp",
    "device_ids": "device_ids",
}
_DEVICES = ("CPU", "CUDA")

# Kept alive, since torch drops the kernels of a library that is freed.
_libraries: list[torch.library.Library] = []


def serve_operators(kind: Kind) -> None:
    """Make the operators accept groups of `kind`. Does nothing in a torch that cannot call replaced kernels."""
    if _libraries or not hasattr(torch.library, "get_kernel"):
        return
    for name in METHODS:
        _replace("c10d", name, lambda device, theirs, name=name: _kernel(name, device))  # type: ignore[misc]
    _replace("_c10d_functional", "batch_p2p_ops", functools.partial(_batch, kind))


def _replace(namespace: str, name: str, make: Callable[[torch.device, Any], Callable[..., Any]]) -> None:
    """Replace the kernels of an operator, if torch has it, by `make(device, torch's kernel)`."""
    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    for key in _DEVICES:
        try:
            theirs = torch.library.get_kernel(f"{namespace}::{name}", key)
        except RuntimeError:  # there is none
            continue
        ours = leave_uncompiled(make(torch.device(key.lower()), theirs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the replacement
            library.impl(name, ours, key, with_keyset=True, allow_override=True)  # type: ignore[no-untyped-call]


def _kernel(operator: str, device: torch.device) -> Callable[..., Any]:
    """Return a kernel that calls the method of a group's backend, as torch's kernel does. A distrun group is its own
    backend.

    It must not call torch's kernel, which would wait while it holds the GIL, and threads of gloo may need the GIL.
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
    """Return a kernel of `batch_p2p_ops`. torch's asks C++ whether the backend coalesces messages; distrun does not."""
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


# Functions ------------------------------------------------------------------------------------------------------------


_replaced_for: Kind | None = None


def replace_functions(kind: Kind) -> None:
    """Make the functions of torch.distributed accept groups of `kind`."""
    global _replaced_for
    if _replaced_for is kind:
        return
    _replaced_for = kind
    _replace_function([distributed_c10d, dist], "monitored_barrier", lambda theirs: _monitored_barrier(theirs, kind))
    _replace_function([distributed_c10d, dist], "_set_pg_timeout", lambda theirs: _set_pg_timeout(theirs, kind))
    _replace_function([c10d], "_register_work", lambda theirs: _given(theirs, waiting))
    _replace_function([c10d.Reducer], "_set_forward_pass_work_handle", lambda theirs: _given(theirs, with_future))


def _replace_function(owners: list[Any], name: str, make: Callable[[Any], Any]) -> None:
    """Replace the function `name` in all `owners` that have it."""
    theirs = getattr(owners[0], name, None)
    if theirs is None:
        return
    ours = functools.wraps(theirs)(make(theirs))
    for owner in owners:
        if hasattr(owner, name):
            setattr(owner, name, ours)


def _monitored_barrier(theirs: Any, kind: Kind) -> Any:
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        chosen = distributed_c10d._get_default_group() if group is None else group
        if isinstance(chosen, kind):
            chosen.monitored_barrier(timeout, wait_all_ranks)
        else:
            theirs(group, timeout, wait_all_ranks)

    return monitored_barrier


def _set_pg_timeout(theirs: Any, kind: Kind) -> Any:
    def set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        chosen = distributed_c10d._get_default_group() if group is None else group
        if isinstance(chosen, kind):
            chosen.set_timeout(timeout)
        else:
            theirs(timeout, group)

    return set_pg_timeout


def _given(theirs: Any, make: Callable[[Any], Any]) -> Any:
    def keep(owner: Any, work: Any, *args: Any) -> None:
        theirs(owner, make(work), *args)

    return keep
