"""SyncBatchNorm."""

from distrun.torch import SyncBatchNorm as SyncBatchNorm
