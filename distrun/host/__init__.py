"""The lowest layer: facts about the machine that the launcher and the ranks must agree on.

Both sides of a job use these modules, so that `distrun` never starts ranks that the runtime then refuses. `gpus` counts
the GPUs that CUDA would show a process. `interfaces` lists the network interfaces that are up and applies `--network`
to them. `identity` identifies this boot of the machine. `endpoints` formats and parses `address:port` and finds free
ports. `connections` connect processes that know the same key. `sealing` sends this key over a connection that others
can read, and `munge` lets a cluster's service vouch for a user. `clusters` finds out which of a job's hosts this is if
a cloud starts the same container on each.

Nothing here imports anything of distrun except its errors. psutil is imported only where it is needed, since importing
it takes 50 ms, which a job on one machine can save.
"""
