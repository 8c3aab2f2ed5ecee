"""Process sets."""

from distrun.runtime.process_set import *
from distrun.runtime.process_sets import *
