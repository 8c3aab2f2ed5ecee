"""The rendezvous: the ranks of a job find each other, prove that they belong to the job, and connect.

`within_host` is for the ranks of one host, which connect through a Unix socket and exchange file descriptors.
`across_hosts` is for several hosts: rank 0 is the `server`, every other rank a `client`, and `protocol` defines their
messages. They use `distrun.host.connections`, which only accepts peers that know the job key. In a large job, one rank
of each host is the `relay`, which connects with rank 0 also for the other ranks of its host. These connect with it
`at_host`, over `local_connections`.

`bootstrap` calls the two kinds of rendezvous. `transport.data_connections` and `transport.control` use the protocol to
make more connections later.
"""
