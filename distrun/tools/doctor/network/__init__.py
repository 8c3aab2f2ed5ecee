"""The network between hosts, as the doctor measures it: bandwidth, latency, loss, and packets too large to pass.

`pair` lets the probes of every pair of hosts measure. One is the `server` and the other the `client` of
connections, and both prove that they know the key of this measurement (`authentication`). `transfers` sends and
receives as fast as possible or at a steady pace, and `packet_sizes` sends packet by packet. `verdicts` judges the
findings, without side effects.
"""
