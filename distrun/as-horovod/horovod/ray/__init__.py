"""Horovod's module for Ray, which distrun does not have: importing it raises ImportError."""

raise ImportError(
    "horovod.ray: there is no runner for Ray: start a script with distrun --horovod, or a function with horovod.run"
)
