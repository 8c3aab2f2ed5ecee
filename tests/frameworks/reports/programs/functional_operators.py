"""Every operator `_c10d_functional::*` that this torch has, called by its schema, on two ranks."""

import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives  # noqa: F401  # which defines some of them

dist.init_process_group("distrun")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
GROUP = dist.group.WORLD.group_name
F = torch.ops._c10d_functional


def own(size=4):
    return torch.full((size,), RANK + 1.0)


CALLS = {
    "all_reduce": (lambda: F.all_reduce(own(), "sum", GROUP), [3.0] * 4),
    "all_reduce_": (lambda: F.all_reduce_(own(), "avg", GROUP), [1.5] * 4),
    "all_reduce_coalesced": (lambda: F.all_reduce_coalesced([own()], "sum", GROUP), [3.0] * 4),
    "all_reduce_coalesced_": (lambda: F.all_reduce_coalesced_([own()], "sum", GROUP), [3.0] * 4),
    "all_gather_into_tensor": (lambda: F.all_gather_into_tensor(own(2), SIZE, GROUP), [1.0, 1.0, 2.0, 2.0]),
    "all_gather_into_tensor_out": (
        lambda: F.all_gather_into_tensor_out(own(2), SIZE, GROUP, out=torch.empty(4)),
        [1.0, 1.0, 2.0, 2.0],
    ),
    "all_gather_into_tensor_coalesced": (lambda: F.all_gather_into_tensor_coalesced([own(1)], SIZE, GROUP), [1.0, 2.0]),
    "reduce_scatter_tensor": (lambda: F.reduce_scatter_tensor(own(4), "sum", SIZE, GROUP), [3.0, 3.0]),
    "reduce_scatter_tensor_out": (
        lambda: F.reduce_scatter_tensor_out(own(4), "sum", SIZE, GROUP, out=torch.empty(2)),
        [3.0, 3.0],
    ),
    "reduce_scatter_tensor_coalesced": (
        lambda: F.reduce_scatter_tensor_coalesced([own(4)], "sum", SIZE, GROUP),
        [3.0, 3.0],
    ),
    "all_to_all_single": (lambda: F.all_to_all_single(own(), [2, 2], [2, 2], GROUP), [1.0, 1.0, 2.0, 2.0]),
    "broadcast": (lambda: F.broadcast(own(), 0, GROUP), [1.0] * 4),
    "broadcast_": (lambda: F.broadcast_(own(), 1, GROUP), [2.0] * 4),
    "batch_p2p_ops": (
        lambda: F.batch_p2p_ops(["irecv", "isend"], [1 - RANK] * 2, [0, 0], [torch.empty(1), own(1)], GROUP)[:1],
        [2.0 - RANK],
    ),
    "isend": (
        lambda: F.isend(own(1), 1, 0, GROUP) if RANK == 0 else F.irecv(torch.empty(1), 0, 0, GROUP),
        [] if RANK == 0 else [1.0],
    ),
    "_wrap_tensor_autograd": (lambda: F._wrap_tensor_autograd(own(1)), [RANK + 1.0]),
}
CALLED_BY_OTHERS = {"irecv", "wait_tensor"}
listed = {
    str(name).split("::")[1] for name in torch._C._dispatch_get_all_op_names() if "_c10d_functional::" in str(name)
}
wrong = []
for name in sorted(listed & set(CALLS)):
    call, expected = CALLS[name]
    found = call()
    found = found[0] if isinstance(found, (list, tuple)) else found
    if F.wait_tensor(found).tolist() != expected:
        wrong.append(name)
print(RANK, "wrong:", wrong, "not called:", sorted(listed - set(CALLS) - CALLED_BY_OTHERS))
dist.barrier()
dist.destroy_process_group()
