"""Tensor fusion: which tensors travel together, how they are packed into one buffer, and how they get out again."""
