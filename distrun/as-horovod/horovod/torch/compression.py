"""Compression."""

from distrun.runtime.collectives.compressors import (
    Compression as Compression,
    Compressor as Compressor,
    FP16Compressor as FP16Compressor,
    NoneCompressor as NoneCompressor,
)
