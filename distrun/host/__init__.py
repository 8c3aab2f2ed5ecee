"""The ground floor: facts about the machine that the launcher and the ranks must see alike.

Both sides of a job ask these modules, so that `distrun` never starts ranks that the runtime then refuses: `gpus`
counts the GPUs that CUDA would show a process, `interfaces` lists the network interfaces that are up and applies
`--network` to them, `identity` tells this machine from all others, `endpoints` writes and reads `address:port` and
finds free ports, and `connections` are made between processes that know the same key. `sealing` takes that key to them
over a line that others can read, and `munge` asks the cluster who somebody is. `clusters` reads which of a job's hosts
this is where a cloud starts the same container on each.

Nothing here imports anything of distrun but its errors. psutil is imported where it is needed, since it costs 50 ms
that a job on one machine need not spend.
"""
