"""The contract between the launcher and the ranks: what both must say alike, and neither owns.

`launch` has the variables that the launcher sets and the ranks read, `settings` those that users set, and `horovod` the
names that Horovod's users give these. `topology` is ranks and sizes. `elastic` has the messages between a rank of an
elastic job and the launcher.

Nothing here imports anything of distrun but `tracing`, `host` and its errors.
"""
