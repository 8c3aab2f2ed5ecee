"""`distrun help`, and what `distrun --help` prints: `screen` is the first page, `command` the rest.

`groups` sorts the options of a launch, `words` explains words of messages, and `catalogue` lists the commands.
"""
