"""Algorithms: the ways in which one rank of each host reduce their arrays together.

`base` is what they have in common: pieces that follow each other through the same steps. `direct` exchanges everything
with everybody, `ring` has two neighbours, `halving_doubling` log2(n) partners, `tree` a parent and two children; direct
exchange and the tree copy an array to all hosts, too. `choice` says which is taken for which array, and `measuring`
finds out which links are slow.
"""
