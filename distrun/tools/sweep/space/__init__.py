"""The parameters of a sweep: their ranges, and the command that a trial with some values of them runs.

`ranges` reads `log:1e-4..1e-1` and its like. `command_line` tells parameters from the words of the command and puts
values into it. `imports` finds the modules that a script imports first, for spares. All of it is pure, but for reading
the script.
"""
