"""Optimizers for ranks that do not reduce their gradients together at every step: `diloco` and `asynchronous`."""
