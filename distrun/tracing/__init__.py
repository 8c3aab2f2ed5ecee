"""Events of ranks: what a rank did when, in a ring of shared memory that its agent reads beside it.

`layout` is the form of the ring, `ring` writes it and `reader` reads it; `recording` is the ring of this process, to
which the runtime and the faces tell what happens; `activity` says in words what a rank is doing.
"""
