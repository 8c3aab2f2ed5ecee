"""The live view: how a running job spends its time, in the terminal that started it or in any other.

`hub` keeps the model and takes a `snapshot` of it twice per second for all viewers: `view` in the launcher's terminal
(`tables` makes its lines, `keys` reads the keyboard, `sentences` makes plain text without a terminal), and the clients
of `server`, such as `distrun top`.
"""
