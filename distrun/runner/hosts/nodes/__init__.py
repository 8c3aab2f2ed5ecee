"""Jobs whose launcher is started on every node, as torchrun's is: the launchers meet, and each starts its own ranks.

`launch` is the way from one launcher's options to its part of the plan. `rendezvous` finds out who hosts the
rendezvous: that is the `server`, which keeps a `roster` of who has come, and every other launcher is a `client`. When
all are there, each plans the whole job by itself, from the same facts, and executes its own part. From then on they are
`peers`: an event on one node becomes known on all, so each decides by the same rules as for a job of its own.
`messages` is what they say, and `connection` how it travels, between launchers that know the same secret only. Nothing
is pickled, and the job key never travels.
"""
