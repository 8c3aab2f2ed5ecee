"""The command line of horovodrun, and its configuration file, whose YAML becomes words of that command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distrun.contract.settings import LOG_LEVELS
from distrun.errors import UsageError
from distrun.runner.command_lines import mpirun
from distrun.runner.command_lines.table import Becomes, Holds, Ignored, Program, Refused, Translation, flag
from distrun.runner.command_lines.translate import number, one_of, translate

_NO_CYCLE = Ignored("operations start when the last rank has submitted them, without a cycle to wait for")
_HIERARCHICAL = "what crosses hosts does so once per host always"
_NO_NUMBERS = Ignored("tuning ends within 50 steps and adapts to how they vary, without numbers to choose")
# The options that make a job of Horovod elastic, and the options that have an effect only in an elastic job.
_ELASTIC = ("--min-np", "--max-np", "--hosts-from")
_OF_ELASTIC = ("--elastic-timeout", "--reset-limit", "--cooldown")

_TIMES = ("--log-with-timestamp", "--log-without-timestamp")
_NO_TIMES = (_TIMES[1], _TIMES[0])
# The flag of each key of the file. A key with two flags is a switch: the first is for true, the second for false.
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
        "mpi_threads_disable": ("--mpi-threads-disable", "--no-mpi-threads-disable"),
        "num_nccl_streams": "--num-nccl-streams",
        "thread_affinity": "--thread-affinity",
        "ccl_bgt_affinity": "--thread-affinity",  # its earlier names
        "mlsl_bgt_affinity": "--thread-affinity",
        "gloo_timeout_seconds": "--gloo-timeout-seconds",
    },
    "logging": {"level": "--log-level", "with_timestamp": _TIMES, "hide_timestamp": _NO_TIMES},
}
_CONTROLLERS = {"gloo": "--gloo", "mpi": "--mpi"}


def _fusion(megabytes: str) -> list[str]:
    size = int(number(megabytes) * 2**20)
    return ["-x", f"DISTRUN_FUSION_THRESHOLD={size}", "-x", f"DISTRUN_BUCKET_BYTES={size}"]


def _level(name: str) -> list[str]:
    return ["-x", f"DISTRUN_LOG_LEVEL={one_of(name, *LOG_LEVELS)}"]


def _binding(arguments: str) -> Translation:
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise UsageError(f"it cannot be split: {error}; quote as in a shell") from None
    return translate(Program("mpirun", mpirun.PROGRAM.flags, any_dashes=True), words)


def _config(file: str) -> Translation:
    words = [word for section, content in _load(file).items() for word in _section(str(section), content)]
    return translate(Program("horovodrun", PROGRAM.flags), words)


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
    values = content or {}
    if not isinstance(values, dict):
        raise UsageError(f"the section {name} holds {content!r}: give keys and values, {', '.join(_KEYS[name])}")
    for key, value in values.items():
        if key not in _KEYS[name]:
            raise UsageError(f"there is no key {key!r} in the section {name}: allowed are {', '.join(_KEYS[name])}")
        if value is not None:
            yield from _entry(f"{name}.{key}", _KEYS[name][key], value)


def _entry(key: str, flags: str | tuple[str, str], value: object) -> Iterator[str]:
    if isinstance(flags, tuple):
        if not isinstance(value, bool):
            raise UsageError(f"{key} is {value!r}: allowed are true and false")
        yield flags[not value]
        return
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise UsageError(f"{key} is {value!r}: give one number or one text")
    yield from (flags, str(value))


def _finish(translation: Translation) -> Translation:
    """Leave out options without effect: arguments for mpirun if it does not start the ranks, as Horovod does with Gloo,
    the log of autotuning without autotuning, and limits of elastic jobs if the job is not elastic.
    """
    options, ignored = list(translation.options), list(translation.ignored)
    if "mpirun" not in options:
        _leave_out(options, ignored, ("--mpi-args",), "they are for mpirun, which --mpi uses")
    if "--autotune" not in options:
        _leave_out(options, ignored, ("--autotune-log-file",), "nothing is tuned without --autotune")
    if not {*_ELASTIC} & {*options}:
        _leave_out(options, ignored, _OF_ELASTIC, "it is for elastic jobs, which --min-np makes")
    return Translation(tuple(options), translation.command, tuple(ignored))


def _leave_out(options: list[str], ignored: list[tuple[str, str]], names: tuple[str, ...], why: str) -> None:
    for name in names:
        while name in options:
            at = options.index(name)
            ignored.append((" ".join(options[at : at + 2]), why))
            del options[at : at + 2]


PROGRAM = Program(
    "horovodrun",
    (
        flag("-v --version", Becomes("--version")),
        flag("-np --num-proc N", Becomes("-np {}")),
        flag("-cb --check-build", Becomes("--check-build")),
        flag("--disable-cache", Holds("no checks are cached")),
        flag("--start-timeout S", Becomes("--start-timeout {}")),
        flag("--network-interfaces --network-interface LIST", Becomes("--network {}", joined=True)),
        flag("--output-filename DIR", Becomes("--output-dir {}")),
        flag("--verbose", Becomes("--verbose")),
        flag("--config-file FILE", Becomes("the options that its keys mean", _config, yields=True)),
        flag("-p --ssh-port PORT", Becomes("--ssh-port {}")),
        flag("-i --ssh-identity-file FILE", Becomes("--ssh-identity-file {}")),
        flag("-H --hosts LIST", Becomes("--hosts {}", joined=True)),
        flag("-hostfile --hostfile FILE", Becomes("--hostfile {}")),
        flag("--gloo --use-gloo", Holds("no MPI is needed")),
        flag("--mpi --use-mpi", Becomes("--launcher mpirun")),
        flag("--jsrun", Refused("jsrun is not used: leave it out; hosts of an LSF job are found")),
        flag("--mpi-args ARGS", Becomes("--mpi-args {}")),
        flag("--binding-args ARGS", Becomes("what mpirun's flags become", _binding)),
        # tuning
        flag("--fusion-threshold-mb M", Becomes("-x DISTRUN_FUSION_THRESHOLD={} -x DISTRUN_BUCKET_BYTES={}", _fusion)),
        flag("--cycle-time-ms T", _NO_CYCLE),
        flag("--cache-capacity N", Becomes("-x DISTRUN_CACHE_CAPACITY={}")),
        flag("--hierarchical-allreduce", Holds(_HIERARCHICAL)),
        flag("--no-hierarchical-allreduce", Ignored(_HIERARCHICAL)),
        flag("--hierarchical-allgather", Holds(_HIERARCHICAL)),
        flag("--no-hierarchical-allgather", Ignored(_HIERARCHICAL)),
        flag("--torus-allreduce", Ignored(_HIERARCHICAL)),
        flag("--no-torus-allreduce", Holds(_HIERARCHICAL)),
        flag("--autotune", Becomes("--autotune")),
        flag("--no-autotune", Holds("nothing is tuned unless --autotune is given")),
        flag("--autotune-log-file FILE", Becomes("--autotune-log-file {}")),
        flag("--autotune-warmup-samples N", _NO_NUMBERS),
        flag("--autotune-steps-per-sample N", _NO_NUMBERS),
        flag("--autotune-bayes-opt-max-samples N", _NO_NUMBERS),
        flag("--autotune-gaussian-process-noise X", _NO_NUMBERS),
        flag("--num-nccl-streams N", Ignored("NCCL works on one stream here")),
        flag("--thread-affinity CORE", Ignored("--bind-to core binds ranks, with all their threads")),
        flag("--mpi-threads-disable", Ignored("mpi4py decides how MPI is started")),
        flag("--no-mpi-threads-disable", Holds("mpi4py decides how MPI is started")),
        flag("--gloo-timeout-seconds S", Becomes("--start-timeout {}", yields=True)),
        flag("--tcp", Becomes("-x NCCL_IB_DISABLE=1")),
        # elastic jobs
        flag("--host-discovery-script FILE", Becomes("--hosts-from {}")),
        flag("--min-np --min-num-proc N", Becomes("--min-np {}")),
        flag("--max-np --max-num-proc N", Becomes("--max-np {}")),
        flag("--slots-per-host N", Becomes("--slots {}")),
        flag("--elastic-timeout S", Becomes("--elastic-timeout {}")),
        flag("--reset-limit N", Becomes("--reset-limit {}")),
        flag("--blacklist-cooldown-range MIN MAX", Becomes("--cooldown {},{}")),
        # messages
        flag("--timeline-filename FILE", Becomes("-x HOROVOD_TIMELINE={}")),
        flag("--timeline-mark-cycles", Becomes("--timeline-mark-cycles")),
        flag("--no-timeline-mark-cycles", Holds("they are not marked")),
        flag("--no-stall-check", Becomes("--stall-warning 0 --stall-timeout 0")),
        flag("--stall-check", Holds("it is on")),
        flag("--stall-check-warning-time-seconds S", Becomes("--stall-warning {}")),
        flag("--stall-check-shutdown-time-seconds S", Becomes("--stall-timeout {}")),
        flag("--log-level LEVEL", Becomes("-x DISTRUN_LOG_LEVEL={}", _level)),
        flag("--log-with-timestamp --no-log-hide-timestamp", Becomes("-x DISTRUN_LOG_TIME=1")),
        flag("--log-without-timestamp --log-hide-timestamp", Becomes("-x DISTRUN_LOG_TIME=0")),
        flag("--prefix-output-with-timestamp -prefix-timestamp", Becomes("--prefix-output-with-timestamp")),
    ),
    defaults=("--horovod",),
    abbreviations=True,
    finish=_finish,
)
