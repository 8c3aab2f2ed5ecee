"""distrun for Keras under Horovod's names: see `distrun.tensorflow.keras`."""

from distrun.tensorflow.keras import *
from horovod import __version__ as __version__
from horovod.common.exceptions import HorovodInternalError as HorovodInternalError
from horovod.tensorflow.keras import elastic as elastic
