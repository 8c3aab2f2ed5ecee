"""The names that `distrun` and its package for every framework export.

They are this rank's place in the job and its number of restarts, what only rank 0 does, operators, process sets, the
barrier, reports of trials, and the error for Horovod scripts.
"""

from distrun.errors import HorovodInternalError as HorovodInternalError
from distrun.runtime.collectives.synchronisation import barrier as barrier, join as join
from distrun.runtime.collectives.trial import TrialPruned as TrialPruned, report as report
from distrun.runtime.operations.reduction import (
    Adasum as Adasum,
    Average as Average,
    Max as Max,
    Min as Min,
    Product as Product,
    Sum as Sum,
)
from distrun.runtime.process_sets.process_set import ProcessSet as ProcessSet, global_process_set as global_process_set
from distrun.runtime.process_sets.process_sets import (
    add_process_set as add_process_set,
    remove_process_set as remove_process_set,
)
from distrun.runtime.world.rank_zero import on_rank_zero as on_rank_zero
from distrun.runtime.world.restarts import restart_count as restart_count
from distrun.runtime.world.world import (
    cross_rank as cross_rank,
    cross_size as cross_size,
    is_initialized as is_initialized,
    local_rank as local_rank,
    local_size as local_size,
    rank as rank,
    size as size,
)
