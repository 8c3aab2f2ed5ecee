"""The network between hosts, as the doctor sees it: bandwidth, latency, loss, and packets too large to pass.

`checks` has the probes of every `pair` of hosts measure, one the `server` and one the `client` of connections on which
both have proved to know the key of this measurement (`authentication`). `transfers` sends and receives as much as goes
through, or at a steady pace, and `packet_sizes` packet by packet. `verdicts` judges what was found, without any
effect.
"""
