"""Horovod's module for MXNet, which distrun does not have: importing it raises ImportError."""

raise ImportError("horovod.mxnet: MXNet, which is retired, is not supported: use torch, TensorFlow, Keras or JAX")
