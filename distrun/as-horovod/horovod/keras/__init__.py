"""distrun for Keras under Horovod's names: see `distrun.keras`."""

from distrun.keras import *
from distrun.keras.values.tensors import *
from horovod import __version__ as __version__
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.keras import elastic as elastic
