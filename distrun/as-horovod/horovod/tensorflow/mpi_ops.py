"""The collectives and the rank's place in the job."""

from distrun.runtime.world.capabilities import *
from distrun.runtime.world.world import shutdown as shutdown
from distrun.shared_names import *
from distrun.tensorflow.collectives import *
from distrun.tensorflow.ranks import *
