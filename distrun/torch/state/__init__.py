"""Starting from the same state: parameters, optimizer state and objects, from one rank to all.

`broadcasts` has the functions for state_dicts, whose `skeletons` travel pickled and whose tensors do not; `objects`
those for Python objects.
"""

from distrun.torch.state.broadcasts import (
    broadcast_optimizer_state as broadcast_optimizer_state,
    broadcast_parameters as broadcast_parameters,
)
