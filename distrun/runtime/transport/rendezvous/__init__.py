"""The rendezvous: the ranks of a job find each other, prove that they belong together, and connect.

`within_host` is for the ranks of one host, which meet on a Unix socket and exchange file descriptors. `across_hosts` is
for several hosts: rank 0 is the `server`, every other rank a `client`, and `protocol` is what both know. They connect
as `distrun.host.connections` has it: only with who knows the job key. `munge` hands the ranks of a Slurm job their key.
Where a job is large, the ranks come together `at_host` first, and one is the `relay` of the others, over
`local_connections`.

Calls go from `bootstrap` to the two kinds of rendezvous, and from `transport.links`, which dials and listens for the
connections of rails.
"""
