"""The environments: the launchers that may have started this process, one file each.

`detect` chooses one by the variables that are set. All have the same interface, documented in `base`: this rank's
`Topology`, a name for the job on this host, the job's key, and the endpoint where the ranks of several hosts find each
other. They only read variables. `bootstrap` asks them and acts.
"""

from __future__ import annotations

from collections.abc import Mapping

from distrun.runtime.world.environments.base import Environment
from distrun.runtime.world.environments.cluster import Cluster
from distrun.runtime.world.environments.distrun import Distrun
from distrun.runtime.world.environments.env_url import EnvUrl
from distrun.runtime.world.environments.flux import Flux
from distrun.runtime.world.environments.hydra import Hydra
from distrun.runtime.world.environments.openmpi import OpenMpi
from distrun.runtime.world.environments.single import Single
from distrun.runtime.world.environments.slurm import Slurm
from distrun.runtime.world.environments.torchrun import Torchrun

__all__ = ["DETECTION_ORDER", "Environment", "detect"]

# The first one present wins. A launcher started inside another one's job leaves both sets of variables in the rank, so
# the one that is usually inside comes first: `srun --ntasks-per-node=1 torchrun ...` is torchrun's job, and `mpirun` in
# an sbatch script is MPI's. Clusters come after the launchers that are started inside their containers. RANK and
# WORLD_SIZE alone may be exported by any script, so they come last.
_LAUNCHERS: tuple[type[Environment], ...] = (Distrun, Torchrun, OpenMpi, Hydra, Flux, Slurm)
DETECTION_ORDER: tuple[type[Environment], ...] = (*_LAUNCHERS, Cluster, EnvUrl, Single)


def detect(environ: Mapping[str, str]) -> Environment:
    """Return the environment that made `environ` (usually `os.environ`). It is `Single` if no other one is present."""
    return next(kind(environ) for kind in DETECTION_ORDER if kind.is_present(environ))
