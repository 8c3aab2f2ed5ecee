"""Messages between two ranks, with tags: not a collective, so nothing is negotiated, and no other rank takes part.

`messages` is the interface: `send` and `receive` start a `transfer`, and the caller waits for it. Each rank has a
`messenger`, whose thread starts with the first message. `delivery` handles each message, with the help of `matching`,
and keeps the state of each other rank in a `peer`. `departures` ends transfers with ranks that are gone. Two ranks
connect when one of them has a first message for the other (`dialing`): within a host over Unix sockets, between
hosts over TCP, with the key, the network and the encryption of the job's other connections. `frames` travel on a
`connection`.
"""
