"""TCP connections between the processes of a job, made only after both sides have proved that they know the same key.

`dialer` makes a connection, trying all addresses of the other side, each a `target`. `listener` accepts connections,
many at a time. Both run the `handshake`, with the proofs of `authentication`. Nothing that an unauthenticated process
sends is used. On request, everything after this is encrypted (`tls`). `tcp_options` are set on every connection, and
`tcp_info` and `tcp_condition` examine one that has waited for long. Ranks use these connections with each other, and so
do the launchers of a job that has one launcher on each host.
"""
