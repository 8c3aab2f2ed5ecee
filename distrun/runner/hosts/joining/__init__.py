"""Hosts that call the launcher: the reverse of SSH, for hosts that a cluster manager starts and nobody can log in to.

The first half is the rendezvous, which `nodes` uses as well. One process listens (`listener`, `admission`) at an
`endpoint`. The others call it (`client`), introduce themselves as a `messages.Member`, and wait until the `roster` has
all hosts. Only processes that know the same key get that far. What they send each other is encrypted by TLS, in `nodes`
on request: plans hold environment variables and the key of the ranks.

The second half makes the hosts that have joined agents of the launcher. The manager starts one process on each host,
such as a pod's command or a task of Spark, and each calls `runner.launch.joined.launch`. On host 0 this is the
launcher. On every other host it joins (`join`): it starts an agent like any other, and forwards bytes between the agent
and the launcher (`relay`). So to the launcher a connection is the channel of a program on that host, as with SSH
(`channel`, `joined_agent`), and everything above is the same. `planning` makes the plan of the hosts that have joined.
A host that is started again, for instance after an eviction, calls with the index that it had before.
"""
