"""Horovod's module for the service of tf.data, which distrun does not have: importing it raises ImportError."""

raise ImportError("horovod.tensorflow.data: there is no service for tf.data; distrun.data.shard divides datasets")
