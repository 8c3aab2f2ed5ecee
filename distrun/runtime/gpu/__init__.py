"""Operations on buffers in GPU memory: queued on a stream, and executed by NCCL or staged through host memory.

A rank without GPU tensors imports at most `monitor`, `config` and `buffers`: cupy is imported with the first GPU
tensor. An operation on a GPU, step by step:

1. `arrays` (or a framework's face) wraps the memory of a tensor in a `buffers.DeviceBuffer`, and makes a
   `handles.DeviceHandle`, which records an event, `ready`, after the work that produces the inputs. The engine
   negotiates it as any operation.
2. The engine gets the rank's `gpu.Gpu` from the `monitor` and calls `execute`, in the order agreed by all ranks.
3. The first time, `transport_choice` agrees with the other ranks whether to use NCCL, and `nccl.communicators` connects
them.
4. The communication stream waits for `ready`, and the operation is queued on it. `nccl_backend` calls NCCL
   (`nccl.library`): `nccl.reduction` translates a request into NCCL's terms, and `packing` plans which tensors are
   packed in the `fusion_memory`, and copies them there and back. `quantised` exchanges elements between hosts in 8 or 4
   bits. `staging` does what NCCL cannot do, through page-locked memory and the host backend.
5. A second event, `finished`, is recorded after the operation. For the host, the operation is now done. `in_flight`
   keeps its memory alive.
6. The stream of the thread that waits for the handle waits for `finished`. The host does not wait for the device.
7. While anything is in flight, the engine's own thread calls the `monitor`, which checks for a rank that is gone, an
error of NCCL or the device, and a stall. In such a case, everything is aborted, and later calls raise the reason.

`driver` makes all calls of CUDA, and `buffers` counts the memory that communication holds. The engine calls `monitor`
and `gpu`, which call the two backends and `driver`. Nothing here depends on the engine or the world.
"""
