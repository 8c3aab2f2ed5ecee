"""Events of ranks: what a rank did and when, in a ring of shared memory that its agent reads at the same time.

`layout` defines the format of the ring, `ring` writes it and `reader` reads it. `recording` is the ring of this
process, where the runtime and the packages for frameworks record events. `activity` describes in words what a rank is
doing.
"""
