"""The request to an executor as plain data, checked before Ray is contacted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from distrun.errors import NotOfferedError, UsageError
from distrun.host.numerals import MOST_RANKS


@dataclass(frozen=True)
class Settings:
    """The settings that scripts for Horovod make by `RayExecutor.create_settings`."""

    timeout_s: float | None = None
    """Seconds that the ranks wait for one another in `init`. None: DISTRUN_START_TIMEOUT."""
    placement_group_timeout_s: float = 100.0
    """Seconds that Ray may take to create the placement group of the workers."""
    nics: Iterable[str] | None = None
    """The interfaces and subnets that ranks of other nodes may use. None: Ray's address of each node."""

    def __post_init__(self) -> None:
        if self.timeout_s is not None:
            _check_seconds("timeout_s", self.timeout_s)
        _check_seconds("placement_group_timeout_s", self.placement_group_timeout_s)

    @property
    def network(self) -> str:
        """The interfaces in the format of `--network`."""
        return self.nics if isinstance(self.nics, str) else ",".join(self.nics or ())


@dataclass(frozen=True)
class WorkerRequest:
    """The workers to start."""

    num_workers: int
    num_hosts: int | None
    """The number of nodes. None: Ray chooses it."""
    cpus_per_worker: float
    gpus_per_worker: int
    use_current_placement_group: bool
    settings: Settings
    horovod: bool
    env: Mapping[str, str] = field(default_factory=dict)
    network: str = ""

    @property
    def resources(self) -> dict[str, float]:
        """The resources of a worker, by Ray's names."""
        gpus = {"GPU": float(self.gpus_per_worker)} if self.gpus_per_worker else {}
        return {"CPU": float(self.cpus_per_worker), **gpus}


def number_of_workers(num_workers: object, num_hosts: object, num_workers_per_host: object) -> tuple[int, int | None]:
    """Return the number of workers, and the number of nodes or None if Ray chooses it. Refuse numbers that are
    impossible or contradict each other.
    """
    given = {"num_workers": num_workers, "num_hosts": num_hosts, "num_workers_per_host": num_workers_per_host}
    for name, value in given.items():
        if value is not None and not (isinstance(value, int) and value >= 1):
            raise UsageError(f"{name}={value!r} is not a number of {name[4:].replace('_', ' ')}: give 1 or more")
        if isinstance(value, int) and value > MOST_RANKS:
            raise UsageError(f"{name}={value} is more than a job can have: give at most {MOST_RANKS}")
    if isinstance(num_hosts, int) and isinstance(num_workers_per_host, int):
        workers = num_hosts * num_workers_per_host
        if num_workers not in (None, workers):
            raise UsageError(
                f"num_workers={num_workers} is not num_hosts={num_hosts} times num_workers_per_host="
                f"{num_workers_per_host}: leave num_workers out"
            )
        return workers, num_hosts
    if not isinstance(num_workers, int):
        raise UsageError("neither num_workers nor num_hosts is given: give one of them")
    return num_workers, None


def number_of_gpus(use_gpu: bool, gpus_per_worker: object) -> int:
    """Return the number of GPUs of a worker, which must be a whole number >= 1."""
    if gpus_per_worker is None:
        return int(use_gpu)
    if isinstance(gpus_per_worker, int) and gpus_per_worker >= (1 if use_gpu else 0):
        return gpus_per_worker
    raise UsageError(f"gpus_per_worker={gpus_per_worker!r}: give a whole number >= 1, as a rank has GPUs of its own")


def number_of_cpus(cpus_per_worker: object, gpus: int) -> float:
    """Return the number of CPUs of a worker, a number >= 0, which may be a fraction: Ray's nodes crash at others.
    Refuse 0 if there is nothing else for Ray to reserve.
    """
    if not isinstance(cpus_per_worker, (int, float)) or not 0 <= cpus_per_worker < math.inf:
        raise UsageError(f"cpus_per_worker={cpus_per_worker!r}: give a number of 0 or more, such as 1 or 0.5")
    if not cpus_per_worker and not gpus:
        raise UsageError("cpus_per_worker=0 without GPUs leaves nothing to reserve: give a number above 0, such as 0.1")
    return float(cpus_per_worker)


def variables(name: str, given: object) -> dict[str, str]:
    """Return variables for the workers, which must be a mapping of text to text, as a dictionary."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"{name}={given!r} has no variables by their names: give a dictionary of text")
    for key, value in given.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise UsageError(
                f"{name} has {key!r}: {value!r}: names and values of variables are text, as in {{'A': '1'}}"
            )
    return dict(given)


def refuse_elastic(**arguments: object) -> None:
    """Raise a NotOfferedError for Horovod's arguments for workers that come and go."""
    for name, value in arguments.items():
        if value is not None:
            raise NotOfferedError(
                f"{name}={value!r}: the workers of an executor on Ray neither come nor go; give num_workers, and call "
                "start() again after a failure, or use Ray Train's max_failures with distrun.ray.Config"
            )


def _check_seconds(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UsageError(f"{name}={value!r}: give a number of seconds above 0")
