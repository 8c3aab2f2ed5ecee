"""The bootstrap: from the environment of a process to an engine that is connected with the other ranks' engines.

`join` is the entry. It finds out which launcher started this rank, and the rank's place in the job. On one host
(`one_host`) the ranks find each other through a Unix socket, map each other's memory, and make a backend. Where there
are several hosts (`across_hosts`), all ranks first connect to rank 0, in large jobs through one rank of each host. Rank
0 tells all ranks where the others are, and which settings hold for all. Then the ranks of each host find each other as
on a single host, and each rank connects with the ranks of its rail. Both ways use the `facts` that are known before the
ranks find each other, among them the round of the rendezvous, which keeps out ranks of another generation.
"""
