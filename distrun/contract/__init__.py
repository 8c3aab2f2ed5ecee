"""The contract between the launcher and the ranks: the definitions that both share, and neither owns.

`launch` has the variables that the launcher sets and the ranks read, `settings` the variables that users set, and
`horovod` Horovod's names for these. `topology` is ranks and sizes. `elastic` has the messages between a rank of an
elastic job and the launcher.

From distrun, these modules import only `tracing`, `host` and the errors.
"""
