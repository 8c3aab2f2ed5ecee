"""Loaders of data that fetch ahead."""

from horovod.data.data_loader_base import (
    AsyncDataLoaderMixin as AsyncDataLoaderMixin,
    BaseDataLoader as BaseDataLoader,
)
