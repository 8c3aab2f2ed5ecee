"""Messages between two ranks, with tags: not a collective, so nothing is negotiated, and nobody else takes part.

`messages` is the way in: `send` and `receive` start a `transfer`, which is then waited for. Each rank has a
`messenger`, whose thread starts with the first message; `delivery` decides what becomes of each, with the help of
`matching`, and `peer` is what it knows of another rank; `departures` ends what waits for ranks that are gone. Ranks are
connected when one of them has a first message for the other (`dialing`): within a host over `local_sockets`, between
hosts over TCP, with the key, the network and the encryption of the job's other connections. `frames` are what travels
on a `connection`.
"""
