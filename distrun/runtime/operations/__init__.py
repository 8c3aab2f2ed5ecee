"""The vocabulary that all rooms above share: what an operation is, its arithmetic, and how long it may take.

`request` is what the ranks must agree on, `handle` what the caller holds, `engine` the protocol that makes a handle
progress. `reduction`, `dtypes`, `wire` and `stages` are the arithmetic, and `feedback` keeps what quantisation rounds
away. `timeouts` times waits, by `waking_clock`. `call_site` finds the line of user code that submitted an operation.
`numbering` counts what all ranks have to count alike. `unreported` keeps an error until a call has raised it.
`docstrings` has the texts that the docstrings of all collectives share. Nothing here knows how data is sent.
"""
