"""Tensor fusion: which tensors are sent together, and how they are packed into one buffer and unpacked from it.

A collective costs the same whether it moves 1 KB or 100 KB, so small tensors are fused. This happens in four places:

| what is fused | planned by | packed and unpacked by |
| --- | --- | --- |
| gradients of torch | `buckets`, before there is any data | `torch/bucket`: one copy each, on GPUs `device_packing` |
| gradients in graphs of TensorFlow and JAX | `graph_calls`, once per list of gradients | concatenation in the graph |
| operations ready together | `batching`, for each decision | the backend: `packing`, for NCCL `device_packing` |
| tensors of a state that are broadcast | `batching`, before they are sent | `packing.small_as_one` |

`device_packing` plans the launches of the kernel `packing.cu`, which copies many pieces of a GPU's memory, and scales
and casts them on the way. `runtime/gpu/packing` compiles and launches it. `device_quantisation` plans the launches of
`quantising.cu` for `runtime/gpu/quantised`. `low_rank` is PowerSGD. Everything here is pure, except that `packing`
copies and `low_rank` computes: no communication, no framework, no GPU. It is called by distrun.torch, the graphs, the
negotiation and the backends.

One iteration of data parallelism in torch (`torch/reducer` has the details):

1. When the optimizer is wrapped, `buckets.plan_buckets` makes buckets from rank 0's expected order of gradients.
2. In the backward pass on a CPU, each gradient is copied to its place in a bucket while it is still in cache. On a GPU,
   one launch packs a bucket when all its gradients are there. The gradient that completes a bucket starts the bucket's
   reduction, and the backward pass continues.
3. The ranks agree on the order of reductions. Buckets are large, so `batching` does not fuse them. Small operations
   that became ready with them (metrics, buffers) are fused.
4. At the end of the backward pass, incomplete buckets are sent as well, with zeros for parameters without a gradient.
5. The gradients become views of the buckets, so nothing is copied back. On GPUs, they stay there in later iterations.
"""
