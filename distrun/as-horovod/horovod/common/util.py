"""Horovod's helpers for compiled libraries, which distrun does not have, and some for lists, versions and variables."""

import functools
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, TypeVar

from distrun.runtime.operations.reduction import reduce_op
from distrun.runtime.world import capabilities

Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., Any])

EXTENSIONS = ["tensorflow", "torch"]


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether a framework can be used: `tensorflow`, `torch` or `keras`."""
    return ext_base_name in ("tensorflow", "torch", "keras") and find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Do nothing: there is no extension to check, since nothing is compiled."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether this machine has a GPU that the framework could use."""
    from distrun.host.gpus import visible_gpus

    return extension_available(ext_base_name, verbose) and bool(visible_gpus(os.environ))


def mpi_built(verbose: bool = False) -> bool:
    """See `distrun.torch.mpi_built`."""
    return capabilities.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """See `distrun.torch.gloo_built`."""
    return capabilities.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    """See `distrun.torch.nccl_built`."""
    return capabilities.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    """See `distrun.torch.ddl_built`."""
    return capabilities.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """See `distrun.torch.ccl_built`."""
    return capabilities.ccl_built()


@contextmanager
def env(**kwargs: str) -> Iterator[None]:
    """A context in which these variables of the environment are set."""
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
    """Return consecutive parts of a list, as equal as possible. The first ones may be longer by one."""
    size, longer = divmod(len(items), parts)
    bounds = [part * size + min(part, longer) for part in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(bounds)]


def _cache(f: Function) -> Function:
    """Return a function that caches the results of `f` by arguments."""
    return functools.cache(f)  # type: ignore[return-value]


def is_iterable(x: Any) -> bool:
    """Return whether a value can be iterated over."""
    return hasattr(x, "__iter__") or hasattr(x, "__getitem__")


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether version `ver` is at least `target`.

    Raises:
        ValueError: `target` does not have three numbers, like 1.2.3.
    """
    if len(target.split(".")) != 3:
        raise ValueError(f"the version {target!r} has not three numbers: write it as 1.2.3")
    from packaging.version import Version

    return Version(ver) >= Version(target)


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """Return the function `(op, average)` that returns the reduction for these two arguments."""
    return lambda op, average: reduce_op(average, op)


def get_ext_suffix() -> str:
    """Return the suffix of compiled modules."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Return the path that a compiled library would have in Horovod. The file does not exist."""
    return os.path.join(os.path.dirname(pkg_path), *args) + get_ext_suffix()


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Do nothing: nothing was built against a version of a framework."""


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0
