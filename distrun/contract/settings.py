"""The settings: environment variables that users may set for distrun, read and checked only in this module.

Every field of `Settings` is a variable, DISTRUN_ and the field's name in capitals. docs/settings.md explains them to
users. The launcher reads the same object, so it reports an error once, before it starts anything, and not every rank by
itself. In Horovod mode Horovod's variables count where distrun's are not set: see `distrun.contract.horovod`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from distrun.contract import horovod, launch
from distrun.contract.elastic import variables
from distrun.contract.launch import PREFIX, LaunchContract
from distrun.errors import UsageError
from distrun.host.clusters.kubernetes import ENDPOINT, HOSTS, SLOTS
from distrun.host.departures import DEPARTURES_FD
from distrun.host.endpoints import parse_ports
from distrun.host.interfaces import parse_network
from distrun.host.numerals import real_number, whole_number
from distrun.tracing.layout import EVENTS_FD
from distrun.tracing.timeline.options import DEFAULT_LIMIT, TimelineOptions, parse_limit, parse_steps

STALL_WARNING = "DISTRUN_STALL_WARNING"
STALL_TIMEOUT = "DISTRUN_STALL_TIMEOUT"
START_TIMEOUT = "DISTRUN_START_TIMEOUT"
KEEPALIVE = "DISTRUN_KEEPALIVE"
BACKEND = "DISTRUN_BACKEND"
NETWORK = "DISTRUN_NETWORK"
WIRE_DTYPE = "DISTRUN_WIRE_DTYPE"
ALGORITHM = "DISTRUN_ALGORITHM"
ENCRYPT = "DISTRUN_ENCRYPT"
KEY = "DISTRUN_KEY"
TENSORFLOW_OP = "DISTRUN_TENSORFLOW_OP"
JAX_CALL = "DISTRUN_JAX_CALL"
TORCH_BACKEND = "DISTRUN_TORCH_BACKEND"
INPUT_WAIT = "DISTRUN_INPUT_WAIT"
SHARE_GPUS = "DISTRUN_SHARE_GPUS"
GPU_BACKEND = "DISTRUN_GPU_BACKEND"
DIRECT_BUCKETS = "DISTRUN_DIRECT_BUCKETS"
EVENTS = "DISTRUN_EVENTS"
HINTS = "DISTRUN_HINTS"
TIMELINE = "DISTRUN_TIMELINE"
TIMELINE_STEPS = "DISTRUN_TIMELINE_STEPS"
TIMELINE_OPERATIONS = "DISTRUN_TIMELINE_OPERATIONS"
TIMELINE_LIMIT = "DISTRUN_TIMELINE_LIMIT"
TIMELINE_MARK_CYCLES = "DISTRUN_TIMELINE_MARK_CYCLES"
SCALARS = "DISTRUN_SCALARS"
AUTOTUNE = "DISTRUN_AUTOTUNE"
AUTOTUNE_LOG = "DISTRUN_AUTOTUNE_LOG"
AUTOTUNE_WIRE_DTYPES = "DISTRUN_AUTOTUNE_WIRE_DTYPES"

FLAT, HIERARCHICAL = "flat", "hierarchical"

AUTO, DIRECT, RING, HALVING_DOUBLING, TREE = "auto", "direct", "ring", "halving-doubling", "tree"
ALGORITHMS = (AUTO, DIRECT, RING, HALVING_DOUBLING, TREE)
"""The algorithms that reduce arrays between hosts. `AUTO` chooses one for each operation."""

HALF_PRECISION, QUANTISED = ("float16", "bfloat16"), ("int8", "int4")
WIRE_DTYPES = (*HALF_PRECISION, *QUANTISED)
"""The types, other than their own, that floats may be sent as between hosts."""
WIRE_SHARES = {"float16": 1 / 2, "bfloat16": 1 / 2, "int8": 65 / 256, "int4": 33 / 256}
"""The size of the sent data as a share of float32's. Quantised types have a scale of 4 bytes for 256 elements."""

REQUESTS = 1 << 16
"""The number of requests that a cache holds, if the user does not say. Further ones are as correct, but slower."""

LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")

_SHORTEST_KEY = 32


Parser = Callable[[str, str], Any]
"""Takes a variable and its text, and returns the value. Raises UsageError."""


def _checked(parse: Callable[[str], object], wrong: str) -> Parser:
    """Return a parser that says what is `wrong` with a text for which `parse` returns None."""

    def checked(variable: str, text: str) -> object:
        value = parse(text)
        if value is None:
            raise UsageError(f"{variable}={text!r} {wrong}: correct or unset it")
        return value

    return checked


def _below_1(text: str) -> float | None:
    return value if (value := real_number(text)) is not None and value < 1 else None


def _chosen(text: str, allowed: Iterable[str]) -> tuple[str, ...] | None:
    chosen = tuple(dict.fromkeys(text.split(",")))
    return chosen if set(chosen) <= set(allowed) else None


def _one_of(*allowed: str) -> Parser:
    return _checked(lambda text: text if text in allowed else None, f"is not one of {', '.join(allowed)}")


def _switch(meaning: str) -> Parser:
    return _checked({"0": False, "1": True}.get, f"is neither 1 ({meaning}) nor 0")


def _some_of(*allowed: str) -> Parser:
    wrong = f"is no list of {' and '.join(allowed)}, separated by commas"
    return _checked(lambda text: _chosen(text, allowed), wrong)


def _whole(what: str) -> Parser:
    return _checked(lambda text: whole_number(text, 0, sys.maxsize), f"is not {what}")


_number = _checked(real_number, "is not a number >= 0")
_duration = _checked(lambda text: real_number(text) or None, "is not a number of seconds > 0")
_share = _checked(_below_1, "is not a share from 0 (off) to below 1")
_bytes = _whole("a number of bytes")


def _rounded(variable: str, text: str) -> int:
    return int(_number(variable, text))


def _text(parse: Callable[[str, str], object] = lambda text, source: text) -> Parser:
    """Return a parser that keeps the text, after `parse` has checked it."""

    def checked(variable: str, text: str) -> str:
        parse(text, f"{variable}=")
        return text

    return checked


def _steps(variable: str, text: str) -> range:
    return parse_steps(f"{variable}=", text)


def _limit(variable: str, text: str) -> int:
    return parse_limit(f"{variable}=", text)


def _key(variable: str, text: str) -> bytes:
    if len(text) < _SHORTEST_KEY:  # the value is a secret, so the message does not show it
        raise UsageError(
            f"{variable} has {len(text)} characters: set it to at least {_SHORTEST_KEY}, as from `openssl rand -hex 32`"
        )
    return text.encode("utf-8", "surrogateescape")


def _setting(default: object, parse: Parser, secret: bool = False) -> Any:
    """Return a field with its default, and the function that parses and checks its variable's text."""
    return field(default=default, repr=not secret, metadata={"parse": parse})


@dataclass(frozen=True)
class Settings:
    """The settings of one process. An empty variable counts as not set."""

    stall_warning: float = _setting(60.0, _number)
    """Seconds after which a waiting operation is reported. 0: never."""
    stall_timeout: float = _setting(0.0, _number)
    """Seconds after which a waiting operation fails. 0: never."""
    start_timeout: float = _setting(60.0, _duration)
    """Seconds that the ranks wait for one another in `init`."""
    keepalive: float = _setting(15.0, _number)
    """Seconds without a sign of life after which another host counts as gone. 0: never."""
    fusion_threshold: int = _setting(64 << 20, _rounded)
    """The most bytes that operations submitted together are fused to. 0 fuses nothing."""
    bucket_bytes: int = _setting(25 << 20, _bytes)
    """The bytes that make a gradient bucket of `distrun.torch` full."""
    first_bucket_bytes: int = _setting(1 << 20, _bytes)
    """The bytes that make the first bucket full."""
    cache_capacity: int = _setting(REQUESTS, _rounded)
    """The number of requests that get a cache id."""
    backend: str = _setting("auto", _one_of("auto", "shared_memory", "tcp", "mpi"))
    """The transport for arrays: tcp is for several hosts, shared_memory for one."""
    network: str = _setting("", _text(parse_network))
    """The interfaces and subnets that ranks of other hosts may use, separated by commas. Empty: all."""
    ports: str = _setting("", _text(parse_ports))
    """The ports that distrun may listen at, `5000-5099`. Empty: any."""
    fan_out: int = _setting(0, _whole("a whole number >= 0"))
    """The most hosts whose messages with rank 0 the first rank of one host forwards. 0: all ranks connect with rank 0
    if they are few, and 8 hosts otherwise. Rank 0's value counts."""
    wire_dtype: str = _setting("", _one_of(*WIRE_DTYPES))
    """The type that float32 and float64 are sent as between hosts. Empty: their own."""
    algorithm: str = _setting(AUTO, _one_of(*ALGORITHMS))
    """The algorithm that reduces arrays between hosts. Rank 0's value counts."""
    encrypt: bool = _setting(False, _switch("connections between hosts are encrypted"))
    """Whether connections with other hosts are encrypted. It must be the same on all ranks."""
    key: bytes | None = _setting(None, _key, secret=True)
    """The secret that the ranks share where distrun's launcher does not give them one."""
    tensorflow_op: str = _setting("auto", _one_of("auto", "kernel", "numpy_function"))
    """How collectives are built into TensorFlow graphs."""
    jax_call: str = _setting("auto", _one_of("auto", "ffi", "io_callback"))
    """How collectives are built into JAX programs."""
    torch_backend: bool = _setting(False, _switch("scripts that ask torch.distributed for gloo get distrun"))
    """Whether scripts that ask torch.distributed for gloo, or for no backend, get distrun's backend."""
    input_wait: float = _setting(0.2, _share)
    """The share of its time that a rank may wait for input before a warning. 0: never warn."""
    share_gpus: bool = _setting(False, _switch("ranks may share a GPU"))
    """Whether the ranks of a host may share GPUs where there are fewer GPUs than ranks."""
    gpu_backend: str = _setting("auto", _one_of("auto", "nccl", "staged"))
    """The transport for tensors between GPUs. Rank 0's value counts."""
    direct_buckets: bool = _setting(False, _switch("gradients on GPUs are reduced without negotiation"))
    """Whether buckets of gradients on GPUs are queued without negotiation. Rank 0's value counts."""
    native: bool = _setting(True, _switch("functions compiled from C are used where there are some"))
    """Whether `distrun.native`, which reads the variable itself, may use its library."""
    adasum: str = _setting(FLAT, _one_of(FLAT, HIERARCHICAL))
    """Whether Adasum combines all ranks, or the averages of the hosts. It must be the same on all ranks."""
    events: bool = _setting(True, _switch("what this rank does when is recorded"))
    """Whether each rank records its events in a ring of shared memory."""
    timeline: str = _setting("", _text())
    """The file of a timeline of all ranks. Empty: none is written."""
    timeline_steps: range | None = _setting(None, _steps)
    """The steps that a timeline shows. None: all."""
    timeline_operations: bool = _setting(False, _switch("each operation has a row in the timeline"))
    """Whether each operation has a row in a timeline."""
    timeline_limit: int = _setting(DEFAULT_LIMIT * 1_000_000, _limit)
    """The most bytes of a timeline file. The variable has megabytes."""
    timeline_mark_cycles: bool = _setting(False, _switch("arriving decisions are marked in the timeline"))
    """Whether a timeline marks when decisions of the coordinator arrive."""
    scalars: float = _setting(0.0, _number)
    """Seconds between two times when rank 0 writes figures to TensorBoard and MLflow. 0: never."""
    autotune: bool = _setting(False, _switch("settings of communication are tuned on the running job"))
    """Whether settings that the user has not set are tuned on the running job. Rank 0's value counts."""
    autotune_log: str = _setting("", _text())
    """The file where rank 0 logs what was tried. Empty: none."""
    autotune_wire_dtypes: tuple[str, ...] = _setting((), _some_of(*HALF_PRECISION))
    """The types that gradients may be sent as between hosts if tuning finds that faster. Rank 0's value counts."""
    hints: bool = _setting(True, _switch("ranks tell of likely mistakes in scripts"))
    """Whether ranks tell of what a script does by mistake in most cases."""
    log_level: str = _setting("", _one_of(*LOG_LEVELS))
    """The lowest level of messages that are printed. Empty: warnings, or the program's own choice."""
    log_time: bool = _setting(False, _switch("messages begin with the time"))
    """Whether messages begin with the time."""
    horovod: bool = _setting(False, _switch("this rank runs in Horovod's mode"))
    """Whether this rank runs a Horovod script. Where distrun differs on purpose, Horovod's numbers hold."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Settings:
        """Return the settings in an environment.

        Raises:
            UsageError: a variable has an impossible value.
        """
        given: dict[str, Any] = {}
        horovods = horovod.settings_of(environ)
        for entry in fields(cls):
            variable = PREFIX + entry.name.upper()
            if text := environ.get(variable):
                given[entry.name] = entry.metadata["parse"](variable, text)
            elif entry.name in horovods:
                given[entry.name] = entry.metadata["parse"](*horovods[entry.name])
        return cls(**given)

    def timeline_options(self) -> TimelineOptions:
        """Return the options of the timeline. `timeline` must be set."""
        return TimelineOptions(
            os.path.abspath(self.timeline),
            self.timeline_steps,
            self.timeline_operations,
            self.timeline_limit,
            self.timeline_mark_cycles,
        )

    def check_backend(self, hosts: int) -> None:
        """Raise an error if the backends cannot connect ranks on `hosts` hosts, or not with encryption as required.

        Raises:
            UsageError: tcp on one host, shared_memory on several, or encryption with a backend that cannot encrypt.
        """
        if self.encrypt and hosts > 1:
            for variable, value, other in ((BACKEND, self.backend, "tcp"), (GPU_BACKEND, self.gpu_backend, "staged")):
                if value in ("mpi", "nccl"):
                    raise UsageError(
                        f"{variable}={value!r} moves arrays by a library whose connections distrun cannot encrypt: use "
                        f"auto or {other}, or leave --encrypt ({ENCRYPT}=1) out"
                    )
        if self.backend == "tcp" and hosts == 1:
            raise UsageError(f"{BACKEND}='tcp' does not connect the ranks of one host: use auto, shared_memory or mpi")
        if self.backend == "shared_memory" and hosts > 1:
            raise UsageError(f"{BACKEND}='shared_memory' does not connect several hosts: use auto, tcp or mpi")


def given(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the fields of `Settings` that have values in an environment."""
    own = {entry.name for entry in fields(Settings) if environ.get(PREFIX + entry.name.upper())}
    return frozenset(own | horovod.settings_of(environ).keys())


def current() -> Settings:
    """Return the settings from this process's environment as it is now.

    Reading takes some tens of microseconds, so code that needs a setting often should keep it.

    Raises:
        UsageError: a variable has an impossible value.
    """
    return Settings.of(os.environ)


def is_given(switch: str) -> bool:
    """Return whether a switch is on, or has a value that `current` rejects: for callers that must not raise."""
    return os.environ.get(switch, "0") not in ("", "0")


VARIABLES = tuple(PREFIX + entry.name.upper() for entry in fields(Settings))
"""The names of the variables that users may set."""


def unknown(names: Iterable[str]) -> list[str]:
    """Return a sentence for each name that begins like distrun's variables but is not one, with the nearest real name.

    Variables of the launch contract and of elastic jobs are known, though users should not set them.
    """
    known = {
        *VARIABLES,
        *(HOSTS, ENDPOINT, SLOTS, EVENTS_FD, DEPARTURES_FD),
        *(value for module in (launch, variables) for value in vars(module).values() if isinstance(value, str)),
        *(PREFIX + entry.name.upper() for entry in fields(LaunchContract)),
    }
    unclaimed = sorted({name for name in names if name.startswith(PREFIX)} - known)
    return [f"{name} is not a setting of distrun and changes nothing: {_remedy(name)}" for name in unclaimed]


def _remedy(name: str) -> str:
    import difflib

    own = [variable.removeprefix(PREFIX) for variable in VARIABLES]
    near = difflib.get_close_matches(name.removeprefix(PREFIX).upper(), own, n=1)
    return f"did you mean {PREFIX}{near[0]}?" if near else "docs/settings.md lists those that exist"
