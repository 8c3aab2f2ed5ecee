"""The variables of processes of elastic jobs beside the launch contract. Every rank looks for the first."""

CONTROL_FD = "DISTRUN_CONTROL_FD"
"""The variable that names the descriptor of the control channel. Only ranks of elastic jobs have it."""
SPARE = "DISTRUN_SPARE"
"""The variable that is 1 in a spare until it is activated."""
PROCESS = "DISTRUN_PROCESS"
"""The variable that holds the number of the process, also in whatever it starts."""
