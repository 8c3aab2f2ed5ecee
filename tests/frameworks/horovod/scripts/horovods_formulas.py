"""Adasum by Horovod's formula, of arrays of numpy or tensors of torch."""


def pair(a, b):
    """Adasum of two. Horovod gives short gradients weight 1."""
    product, squares = (a * b).sum(), ((a * a).sum(), (b * b).sum())
    weights = [1 - product / square * 0.5 if square >= 1e-8 else 1 for square in squares]
    return weights[0] * a + weights[1] * b


def adasum(arrays):
    """Adasum of a power of two, from the left of a tree to its top."""
    while len(arrays) > 1:
        arrays = [pair(a, b) for a, b in zip(arrays[::2], arrays[1::2], strict=True)]
    return arrays[0]
