"""Datasets for tests, where processes that were spawned can import them."""

from __future__ import annotations

from torch.utils.data import Dataset


class Numbers(Dataset[int]):
    """The numbers from 0, below `size`."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index
