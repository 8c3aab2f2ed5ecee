"""Algorithms that reduce and copy arrays between the ranks of a rail, one on each host.

`base` is what they have in common: pieces of an array that follow each other through the same steps. In `direct`
exchange, every host has links with all others, in a `ring` with the next and the previous one, by `halving_doubling`
with log2(n) partners, and in a `tree` with a parent and two children. Direct exchange and the tree also broadcast.
`choice` chooses the algorithm for an array, and `measuring` finds out which links are slow.
"""
