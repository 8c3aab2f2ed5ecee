"""Eager messages between hosts: with them comes what else would take a decision, or another way over the network.

`sends` is what a rank sends and takes of them, and when two that cross need no decision; `piggyback` keeps the small
arrays that have come along, and adds them up.
"""
