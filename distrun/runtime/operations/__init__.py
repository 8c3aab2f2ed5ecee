"""The vocabulary that everything above shares: what an operation is, its arithmetic, and how long it may take.

`request` is what the ranks must agree on, `handle` what the caller holds, `engine` the protocol by which a handle is
made to progress. `reduction` and `dtypes` are the arithmetic. `timeouts` times waits, by `waking_clock`. `call_site`
finds the line of user code that an operation comes from, `unreported` keeps an error until a call has raised it, and
`docstrings` has the texts that the docstrings of all collectives share. Nothing here knows how anything travels.
"""
