"""From hooks to reduced gradients: the work of a wrapped optimizer during `backward()`.

`parameters` puts a hook on each parameter. The `reducer` is called for every gradient, finds out with `backward` which
pass it belongs to, and sends a bucket when all of its gradients are complete. Before the first reduction, `planning`
compares the parameters with the other ranks' and plans the buckets: `dense_bucket` on the CPU, `device_bucket` on the
GPU (where `arrivals` tracks streams), `odd_buckets` for sparse gradients and for compressors of the user's own,
`low_rank_bucket` for PowerSGD. Their base class is in `bucket`, and a reducer keeps its buckets in a `bucket_set`.
`residuals` averages what compression has taken from gradients, for a checkpoint.
"""
