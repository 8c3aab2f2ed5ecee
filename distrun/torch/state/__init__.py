"""Starting from the same state: parameters, optimizer state and objects, from one rank to all.

`broadcasts` has the functions for state_dicts. A state_dict without its tensors is a skeleton (`skeletons`), which is
pickled. Its tensors are not, and are broadcast together. `objects` is for Python objects.
"""

from distrun.torch.state.broadcasts import (
    broadcast_optimizer_state as broadcast_optimizer_state,
    broadcast_parameters as broadcast_parameters,
)
