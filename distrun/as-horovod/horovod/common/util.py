"""Horovod's helpers around its compiled libraries, of which there are none here, and two for lists."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, TypeVar

from distrun.runtime import capabilities

Item = TypeVar("Item")

_FRAMEWORKS = {"tensorflow": "tensorflow", "torch": "torch", "keras": "keras"}


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework can be used: `tensorflow`, `torch` or `keras`."""
    framework = _FRAMEWORKS.get(ext_base_name)
    return framework is not None and find_spec(framework) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Return: there is no extension to be checked, since nothing is compiled."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether this machine has a GPU that the framework could use."""
    from distrun.host.gpus import visible_gpus

    return extension_available(ext_base_name, verbose) and bool(visible_gpus(os.environ))


def mpi_built(verbose: bool = False) -> bool:
    """See `distrun.torch.mpi_built`, as for the others below."""
    return capabilities.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """See `mpi_built`."""
    return capabilities.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """See `mpi_built`."""
    return capabilities.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """See `mpi_built`."""
    return capabilities.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """See `mpi_built`."""
    return capabilities.ccl_built()


@contextmanager
def env(**kwargs: str) -> Iterator[None]:
    """Set variables of the environment within this context."""
    before = {name: os.environ.get(name) for name in kwargs}
    os.environ.update(kwargs)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def split_list(items: Sequence[Item], parts: int) -> list[Sequence[Item]]:
    """Return consecutive parts of a list, as equal as they can be: the first ones are longer by one."""
    size, longer = divmod(len(items), parts)
    bounds = [part * size + min(part, longer) for part in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(bounds)]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0
