"""The collectives and the rank's place in the job."""

from distrun.runtime.capabilities import *
from distrun.runtime.shared_names import *
from distrun.runtime.world import shutdown as shutdown
from distrun.tensorflow.collectives import *
from distrun.tensorflow.ranks import *
