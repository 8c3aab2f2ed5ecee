"""The configuration file of horovodrun: converts its YAML to the equivalent words of horovodrun's command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distrun.errors import UsageError

_MPI_THREADS = ("--mpi-threads-disable", "--no-mpi-threads-disable")
_TIMES = ("--log-with-timestamp", "--log-without-timestamp")
_NO_TIMES = (_TIMES[1], _TIMES[0])
# The flag of each key. A key with two flags is a switch: the first is for true, the second for false.
_KEYS: Mapping[str, Mapping[str, str | tuple[str, str]]] = {
    "params": {
        "fusion_threshold_mb": "--fusion-threshold-mb",
        "cycle_time_ms": "--cycle-time-ms",
        "cache_capacity": "--cache-capacity",
        "hierarchical_allreduce": ("--hierarchical-allreduce", "--no-hierarchical-allreduce"),
        "hierarchical_allgather": ("--hierarchical-allgather", "--no-hierarchical-allgather"),
        "torus_allreduce": ("--torus-allreduce", "--no-torus-allreduce"),
    },
    "autotune": {
        "enabled": ("--autotune", "--no-autotune"),
        "log_file": "--autotune-log-file",
        "warmup_samples": "--autotune-warmup-samples",
        "steps_per_sample": "--autotune-steps-per-sample",
        "bayes_opt_max_samples": "--autotune-bayes-opt-max-samples",
        "gaussian_process_noise": "--autotune-gaussian-process-noise",
    },
    "timeline": {
        "filename": "--timeline-filename",
        "mark_cycles": ("--timeline-mark-cycles", "--no-timeline-mark-cycles"),
    },
    "stall_check": {
        "enabled": ("--stall-check", "--no-stall-check"),
        "warning_time_seconds": "--stall-check-warning-time-seconds",
        "shutdown_time_seconds": "--stall-check-shutdown-time-seconds",
    },
    "library_options": {
        "mpi_threads_disable": _MPI_THREADS,
        "num_nccl_streams": "--num-nccl-streams",
        "thread_affinity": "--thread-affinity",
        "ccl_bgt_affinity": "--thread-affinity",  # its earlier names
        "mlsl_bgt_affinity": "--thread-affinity",
        "gloo_timeout_seconds": "--gloo-timeout-seconds",
    },
    "logging": {"level": "--log-level", "with_timestamp": _TIMES, "hide_timestamp": _NO_TIMES},
}
_CONTROLLERS = {"gloo": "--gloo", "mpi": "--mpi"}


def words_of(file: str) -> list[str]:
    """Return the command-line words that are equivalent to a configuration file.

    Raises:
        UsageError: the file cannot be read, or has a key or a value that horovodrun does not know.
    """
    values = _load(file)
    return [word for section, content in values.items() for word in _section(str(section), content)]


def _load(file: str) -> Mapping[Any, Any]:
    try:
        import yaml
    except ImportError:
        raise UsageError("reading it takes PyYAML: install it by pip install pyyaml") from None
    try:
        values = yaml.safe_load(Path(file).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"it cannot be read: {reason}; give a file you may read") from None
    except yaml.YAMLError as error:
        raise UsageError(f"it is not YAML: {' '.join(str(error).split())}; correct it") from None
    if not isinstance(values or {}, dict):
        raise UsageError(f"it holds {values!r} and no sections: allowed are {', '.join(['controller', *_KEYS])}")
    return values or {}


def _section(name: str, content: object) -> Iterator[str]:
    if name == "controller":
        if str(content).lower() not in _CONTROLLERS:
            raise UsageError(f"{name} is {content!r}: allowed are {', '.join(_CONTROLLERS)}")
        yield _CONTROLLERS[str(content).lower()]
        return
    if name not in _KEYS:
        raise UsageError(f"there is no section {name!r}: allowed are {', '.join(['controller', *_KEYS])}")
    if not isinstance(content or {}, dict):
        raise UsageError(f"the section {name} holds {content!r}: give keys and values, {', '.join(_KEYS[name])}")
    assert isinstance(content or {}, Mapping)
    for key, value in dict(content or {}).items():  # type: ignore[call-overload]  # checked above
        if key not in _KEYS[name]:
            raise UsageError(f"there is no key {key!r} in the section {name}: allowed are {', '.join(_KEYS[name])}")
        if value is not None:
            yield from _entry(f"{name}.{key}", _KEYS[name][key], value)


def _entry(key: str, flag: str | tuple[str, str], value: object) -> Iterator[str]:
    if isinstance(flag, tuple):
        if not isinstance(value, bool):
            raise UsageError(f"{key} is {value!r}: allowed are true and false")
        yield flag[not value]
        return
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise UsageError(f"{key} is {value!r}: give one number or one text")
    yield from (flag, str(value))
