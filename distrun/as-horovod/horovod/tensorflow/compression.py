"""Compression."""

from distrun.tensorflow import Compression as Compression
