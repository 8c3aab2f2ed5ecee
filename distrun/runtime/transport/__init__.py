"""The transport: moves words, messages and arrays between ranks. Every wait notices the death of a peer.

`local_group` is the ranks of this host: they exchange words through shared memory, wait for each other, and notice when
one of them is gone. `local_subgroup` is some of these ranks, and `local_ranks` the base class of both.

`network` is the connections with ranks of other hosts, for control messages and alarms, over TCP `connections` that
never block. `control` joins the local group and the network for the coordinator's messages. `links` move arrays between
the ranks of a rail, one rank of each host, over `data_connections`. `host_layout` defines which ranks share a host and
which form a rail. When a rank has been waited for too long, `link_health` asks the kernel about the TCP connections
with it, and `network_causes` adds the answer to stall reports.

Below these are `shared_memory` (segments, mailboxes and doorbells of the ranks of a host), `rendezvous` (ranks find
each other and prove that they belong to the same job), and `mpi` (links and rendezvous through MPI).

Backends call the local group and the links, and the negotiation calls the control plane. Nothing here calls upwards.
"""
