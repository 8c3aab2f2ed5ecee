"""Backends: the ways tensors move between ranks, one file each, behind the interface of `backends.base`."""
