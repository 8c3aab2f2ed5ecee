"""Tensor fusion: which tensors travel together, how they are packed into one buffer, and how they get out again.

A collective costs the same whether it moves 1 KB or 100, so small tensors are fused. It happens in four places:

| what is fused | planned by | packed and unpacked by |
| --- | --- | --- |
| gradients of torch | `buckets`, before there is any data | `torch/bucket`: one copy each; on GPUs `device_packing` |
| gradients in graphs (TensorFlow, JAX, Keras) | `graph_calls`, once per list of gradients | concatenation in the graph
| | operations that are ready together | `batching`, for each decision | the backend: `packing`; NCCL's:
`device_packing` |
| tensors of a state that are broadcast | `batching`, before they are sent | `packing.small_as_one` |

`device_packing` plans the launches of the one kernel, `packing.cu`, that copies many pieces of a GPU's memory and
scales and casts them on the way; `runtime/gpu/packing` compiles and launches it. `device_quantisation` plans those of
`quantising.cu`, for `runtime/gpu/quantised`. `low_rank` is PowerSGD. Everything here is pure, except that `packing`
copies and `low_rank` computes: no communication, no framework, no GPU. The torch face, the graphs, negotiation and the
backends call it.

One iteration of data parallelism in torch (`torch/reducer` has the details):

1. At the wrapping of the optimizer, rank 0's expected order of gradients is turned into buckets:
`buckets.plan_buckets`.
2. In the backward pass, on a CPU each gradient is copied into its place in a bucket while it is still in cache; on a
GPU one
   launch packs a bucket when all its gradients are there. The gradient that completes a bucket starts the bucket's
   reduction, and the backward pass goes on.
3. The ranks agree on the order of reductions. Buckets are large, so `batching` leaves them alone; small operations that
   became ready with them (metrics, buffers) are fused.
4. At the end of the backward pass, incomplete buckets are sent as well, with zeros for parameters without a gradient.
5. The gradients become views of the buckets: nothing is copied back. On GPUs, they live there from then on.
"""
