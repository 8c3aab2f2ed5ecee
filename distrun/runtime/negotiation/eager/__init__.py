"""Eager messages: they carry data along that saves a decision, or a further message over the network.

`sends` sends a rank's eager messages and handles the ones that it receives, and knows when two that cross need no
decision. `piggyback` keeps the small arrays that came along, and reduces them.
"""
