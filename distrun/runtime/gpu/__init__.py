"""Operations on buffers in a GPU's memory: queued on a stream, and carried by NCCL or staged through the hosts' memory.

A rank without GPU tensors imports `monitor`, `config` and `buffers` at most: cupy is imported when the first GPU tensor
comes. An operation on a GPU, step by step:

1. `arrays` (or a framework's face) shows the memory of a tensor as `buffers.DeviceBuffer`, and makes a
   `handles.DeviceHandle`, which records an event, `ready`, behind the work that makes the inputs. The engine negotiates
   it as any operation.
2. The engine gets the rank's `gpu.Gpu` from the `monitor` and calls `execute`, in the order agreed by all ranks.
3. The first time, `transport_choice` settles with the other ranks whether NCCL is used, and `nccl.communicators`
   connects them.
4. The communication stream is made to wait for `ready`, and the operation is queued on it. `nccl_backend` calls NCCL
   (`nccl.library`): `nccl.reduction` gives a request in NCCL's terms, and `packing` plans which tensors are packed in
   the `fusion_memory`, and copies them there and back. What travels between hosts in 8 or 4 bits is exchanged by
   `quantised`. What NCCL cannot do, `staging` does through page-locked memory and the host backend.
5. A second event, `finished`, is recorded behind it. For the host the operation is done; `in_flight` keeps its memory
   alive.
6. The stream of the thread that waits for the handle waits for `finished`. The host does not wait for the device.
7. While anything is in flight, the engine's own thread has the `monitor` check it: for a rank that is gone, an error of
   NCCL or the device, a stall. Then everything is aborted, and the reason is raised by later calls.

`driver` is all of CUDA that is used here, and `buffers` counts the memory that communication holds. Calls go down, from
the engine to `monitor` and `gpu`, from there to the two backends and to `driver`; nothing here knows the engine or the
world.
"""
