"""TCP connections between the processes of a job, each made only when both sides have proved to know the same key.

`dialer` makes a connection, trying all addresses of the other side, each a `target`, and `listener` accepts them, many
at a time; both run the `handshake`, whose proofs are those of `authentication`. Nothing that an unauthenticated process
sends is used. On request all that follows is encrypted (`tls`). `tcp_options` are set on every connection. Ranks
connect in this way with each other, and so do the launchers of a job that was started by one launcher on each of its
hosts.
"""
