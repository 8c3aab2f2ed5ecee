"""distrun for TensorFlow under Horovod's names: see `distrun.tensorflow`."""

from distrun.tensorflow import *
from horovod import __version__ as __version__
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.tensorflow import (
    compression as compression,
    elastic as elastic,
    functions as functions,
    mpi_ops as mpi_ops,
)
