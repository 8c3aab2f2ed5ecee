"""The live view: where the time of a job goes while it runs, in the terminal that started it or in any other.

`hub` keeps the model and makes a `snapshot` of it twice in a second, which the views get: `view` in the launcher's own
terminal (`screen` makes its lines, `keys` reads what is typed, `sentences` is for where there is no terminal), and
those that `server` sends it to. `finding` knows the jobs of this machine, and `commands` are `distrun ps` and `top`.
"""
