"""The world: the job that this process is a rank of, as far as it knows it, and the way there.

`world` holds it, with init and shutdown. `bootstrap` joins it: `environments` says who started this rank, and
`devices` which GPU it is bound to. `regroup`, `generations` and `restarts` are about worlds that change. `capabilities`
answers what scripts ask of it; `timeline` and `scalars` are what a rank writes about itself.
"""
