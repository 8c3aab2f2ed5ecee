"""The transport: words, messages and arrays travel between ranks, and every wait notices the death of a peer.

`local_group` is this host: the ranks exchange words through shared memory, wait for each other, and learn who is gone.
`local_subgroup` is some of them, and `local_ranks` what it has in common with all.
`network` is the other hosts: control messages and alarms, over the TCP `connections` that never block. `control`
joins the two for the coordinator's messages. `links` move arrays between the ranks of a rail, one rank of each host,
over `data_connections`, and `host_layout` says which ranks share a host and which make a rail. Those who have waited
for a rank too long ask `link_health` what TCP says of the connections with it; `network_causes` puts that into reports
of stalls.

Below these are `shared_memory`, segments, mailboxes and doorbells of the ranks of a host; `rendezvous`, by which ranks
find each other and prove that they belong together; and `mpi`, links and rendezvous through MPI.

Backends call the local group and the links, the negotiation calls the control plane; nothing here calls upwards.
"""
