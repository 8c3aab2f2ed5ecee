"""Parameter servers: processes beside the ranks that hold the parameters of a model, and what ranks do with them.

`distrun --servers 2 -np 8 python train.py` starts two servers; `AsyncOptimizer` of a face makes the ranks their
*workers*. Each server holds a *share* of the parameters (`layout`), and the state of the optimizer for it. A worker
pushes its gradients, each server applies its part on arrival by the rules of the optimizer (`rules`), and answers with
the newest parameters. How far workers may drift apart is the staleness (`clocks`).

A server is `process`, which takes connections and serves each in a thread (`service`); one optimizer's share is a
`store`, and `stores` are all of them. They are in memory that outlives the process (`memory`), so that a server that is
started again goes on where the last one was; `copies` in a folder outlive its host, too. A worker has a `connection`
with each server, and `session` is all of them. What the two say to each other is in `protocol`. The `coordinator`
schedules functions on workers; its `calls` wait on server 0.
"""
