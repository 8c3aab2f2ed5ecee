"""Process sets."""

from distrun.runtime.process_set import *
