"""`distrun ps`, `top`, `stop` and `logs`: `commands` finds this user's running jobs, shows them and ends them, and
`logs` prints their output.
"""
