"""Tensors on GPUs: collectives that repeat, and results that are copied when they are fetched."""
