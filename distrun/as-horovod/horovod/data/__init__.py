"""Data loaders that prefetch."""

from horovod.data.data_loader_base import AsyncDataLoaderMixin as AsyncDataLoaderMixin, BaseDataLoader as BaseDataLoader
