"""Compression."""

from distrun.graphs.compression import Compression as Compression, Compressor as Compressor

NoneCompressor = Compression.none
FP16Compressor = Compression.fp16
