"""Functions that give all ranks the same objects and variables."""

from distrun.tensorflow import (
    allgather_object as allgather_object,
    broadcast_global_variables as broadcast_global_variables,
    broadcast_object as broadcast_object,
    broadcast_object_fn as broadcast_object_fn,
    broadcast_variables as broadcast_variables,
)
