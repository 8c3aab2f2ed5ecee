"""The functions that every framework's module has: the rank's place in the job, and Horovod's capability queries."""

from typing import Any

from distrun.runtime.collectives.initialisation import init as init
from distrun.runtime.world.capabilities import *
from distrun.runtime.world.world import (
    cross_rank as cross_rank,
    cross_size as cross_size,
    is_initialized as is_initialized,
    local_rank as local_rank,
    local_size as local_size,
    rank as rank,
    shutdown as shutdown,
    size as size,
)


class HorovodBasics:
    """The functions of this module as methods: `HorovodBasics(__file__, "mpi_lib").rank()`."""

    def __init__(self, pkg_path: str = "", *args: Any) -> None:
        """`pkg_path` and `args` are ignored: in Horovod they name its compiled library."""

    def __getattr__(self, name: str) -> Any:
        try:
            return globals()[name]
        except KeyError:
            raise AttributeError(f"HorovodBasics has no attribute {name!r}") from None
