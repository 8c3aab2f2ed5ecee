"""The operations of a process group: reductions, moves of tensors, and plain ones that repeat."""
