"""From hooks to reduced gradients: what a wrapped optimizer does during `backward()`.

`parameters` puts a hook on each parameter. The `reducer` hears of every gradient, finds out with `backward` which pass
it belongs to, and sends a bucket when all of its gradients are there. The first time it lets `planning` compare the
parameters with those of the other ranks and plan the buckets: `dense_bucket` on the CPU, `device_bucket` on the GPU
(where `arrivals` keeps account of streams), `odd_buckets` for sparse gradients and for compressors of the user's own,
`low_rank_bucket` for PowerSGD. All are a `bucket`, and a reducer's its `bucket_set`. `residuals` are what compression
has
taken, on its way from one bucket to another, or to a checkpoint. `adasum` combines whole steps of the optimizer
instead.
"""
