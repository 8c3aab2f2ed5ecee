"""SyncBatchNormalization."""

from distrun.tensorflow import SyncBatchNormalization as SyncBatchNormalization
