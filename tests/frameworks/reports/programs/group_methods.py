"""Methods of a process group that need no other rank, each in a process of its own: on distrun as on gloo."""

import os
import signal
import sys
import traceback
from datetime import timedelta

import torch
from torch import distributed as dist

CPU = torch.device("cpu")
CALLS = {
    "_start_coalescing": lambda group: group._start_coalescing(CPU),
    "_end_coalescing": lambda group: group._end_coalescing(CPU),
    "split_group": lambda group: group.split_group([0]).size(),
    "_get_sequence_number_for_group": lambda group: group._get_sequence_number_for_group(),
    "_set_sequence_number_for_group": lambda group: group._set_sequence_number_for_group(),
    "_wait_for_pending_works": lambda group: group._wait_for_pending_works(),
    "_has_hooks": lambda group: group._has_hooks(),
    "_register_on_completion_hook": lambda group: group._register_on_completion_hook(print),
    "_enable_collectives_timing": lambda group: group._enable_collectives_timing(),
    "set_timeout": lambda group: group.set_timeout(timedelta(seconds=9)),
    "unbox": lambda group: dist.ProcessGroup.unbox(group.boxed()).size(),
    "monitored_barrier": lambda group: group.monitored_barrier(timedelta(seconds=60)),
    "get_group_store": lambda group: bool(group.get_group_store()),
    "_resolve_process_group": lambda group: dist.distributed_c10d._resolve_process_group(group.group_name).size(),
    "barrier": lambda group: dist.Work.unbox(torch.ops.c10d.barrier(torch.zeros(1), group.boxed(), [])).wait(),
    "new_group": lambda group: dist.new_group([0]).size(),
}


def outcome(backend, call):
    """Return what a method returns, "refused" if it raises an error, or how its process ended, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        try:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
            text = str(call(dist.group.WORLD))
        except Exception:
            text = "refused"
        except BaseException:
            text = traceback.format_exc()
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    return text if status == 0 else f"status {os.waitstatus_to_exitcode(status)}"


other = {}
for name, call in CALLS.items():
    found = {backend: outcome(backend, call) for backend in ("gloo", "distrun")}
    if found["gloo"] != found["distrun"]:
        other[name] = found
print("other than on gloo:", other)
sys.exit(bool(other))
