"""distrun for PyTorch under Horovod's names: see `distrun.torch`."""

from distrun.torch import *
from horovod import __version__ as __version__
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.torch import (  # type: ignore[no-redef]  # its own elastic
    compression as compression,
    elastic as elastic,
    functions as functions,
    mpi_ops as mpi_ops,
    optimizer as optimizer,
    sync_batch_norm as sync_batch_norm,
)
