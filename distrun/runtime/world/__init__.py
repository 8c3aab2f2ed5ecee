"""The world: what this process knows of the job that it is a rank of, and how it joins it.

`world` holds the state, with init and shutdown. `bootstrap` joins the job: `environments` finds out which launcher
started this rank, and `devices` which GPU it is bound to. `regroup`, `generations` and `restarts` are about worlds that
change. `capabilities` answers scripts' questions about the world, and `rank_zero` keeps what writes to one rank.
`timeline` and `scalars` are records that a rank writes about itself.
"""
