"""The parameters of a sweep: their ranges, and the command that a trial runs with certain values.

`ranges` parses ranges such as `log:1e-4..1e-1`. `command_line` separates parameters from the words of the command, and
inserts values into it. `imports` finds the modules that a script imports first, for spares. All of it is pure, except
that it reads the script.
"""
