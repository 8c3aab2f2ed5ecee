"""Agents that call the launcher: the reverse of SSH, for hosts that a cluster manager starts and nobody can log in to.

The manager starts one process on each host, such as a pod's command or a task of Spark. `launch` is what each calls:
on host 0 it is the launcher, which listens (`join_listener`), and on every other host it joins (`join`): it dials the
launcher, starts an agent like any other, and passes on what the two say (`relay`). So to the launcher a connection is
the channel of a program on that host, as SSH's are (`channel`, `joined_agent`), and everything above it is the
same.

Only processes that know the same key are listened to (`admission`), and TLS encrypts what they say: plans hold
environment variables and the key of the ranks. `messages` is what travels, `roster` decides who may join, `planning`
makes the plan of what has come. A host that is started again, after an eviction for instance, calls with the index that
it had before.
"""
