"""distrun for Keras under Horovod's names: see `distrun.keras`."""

from typing import NoReturn as _NoReturn

from distrun.keras import *
from distrun.keras.values.tensors import *
from horovod import __version__ as __version__
from horovod.common.absent import attribute_error as _attribute_error
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.keras import elastic as elastic


def __getattr__(name: str) -> _NoReturn:
    raise _attribute_error(__name__, name)
