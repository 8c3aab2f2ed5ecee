"""Parameter servers: processes besides the ranks that hold the parameters of a model, and the ranks' access to them.

`distrun --servers 2 -np 8 python train.py` starts two servers; `AsyncOptimizer` of a face makes the ranks their
*workers*. Each server holds a *share* of the parameters (`layout`), and the state of the optimizer for it. A worker
pushes its gradients. Each server applies its part on arrival by the rules of the optimizer (`rules`), and answers with
the newest parameters. The staleness limits how far workers may drift apart (`clocks`).

The server process (`process`) accepts connections and serves each in a thread (`service`). A `store` is one optimizer's
share, and `stores` holds all of them, in memory that outlives the process (`memory`), so a restarted server continues
from the state of its predecessor. `copies` in a folder even outlive its host. A worker has a `connection` with each
server, and a `session` uses all of them. `protocol` defines their messages. The `coordinator` schedules functions on
workers, and server 0 queues its calls.
"""
