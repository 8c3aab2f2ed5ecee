"""distrun for TensorFlow under Horovod's names: see `distrun.tensorflow`."""

from typing import TYPE_CHECKING, Any as _Any

import distrun.tensorflow as _face
from horovod import __version__ as __version__
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.tensorflow import (
    compression as compression,
    elastic as elastic,
    functions as functions,
    mpi_ops as mpi_ops,
)

if TYPE_CHECKING:
    from distrun.tensorflow import *
else:  # `import *` would load Keras, for a layer that is otherwise loaded lazily
    globals().update({name: value for name, value in vars(_face).items() if name in _face.__all__})


def __getattr__(name: str) -> _Any:
    if name in vars(_face)["__all__"]:
        return getattr(_face, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
