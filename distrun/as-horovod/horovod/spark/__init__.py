"""Horovod's module for Spark, which distrun does not have: importing it raises ImportError."""

raise ImportError(
    "horovod.spark: there is no runner for Spark: start a script with distrun --horovod, or a function with horovod.run"
)
