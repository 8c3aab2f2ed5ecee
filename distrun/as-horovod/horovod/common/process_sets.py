"""Process sets."""

from distrun.runtime.process_sets.process_set import *
from distrun.runtime.process_sets.process_sets import *
