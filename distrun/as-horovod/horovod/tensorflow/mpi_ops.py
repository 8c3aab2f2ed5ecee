"""The collectives and the rank's place in the job."""

from distrun.tensorflow import *
