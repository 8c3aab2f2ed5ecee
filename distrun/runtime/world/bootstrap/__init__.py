"""The bootstrap: from the environment of a process to an engine that is connected with those of the other ranks.

`join` is the way in: it finds out who started this rank and who it is. On one host (`one_host`) a rank meets the others
on a Unix socket, maps their memory, and has a backend. Where there are several hosts (`across_hosts`), all ranks meet
at rank 0 first, in large jobs by one rank of each host; rank 0 tells everybody who is where and which settings hold for
all. Then the ranks of each host meet as on a single one, and each connects with the ranks of its rail. Both build on
the `facts` that are known before the ranks meet, and on the `rendezvous_round` that this is, by which ranks of another
generation are strangers.
"""
