"""`distrun --check-build`: what a job can use on this machine. Each item is tried in its own process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distrun import __version__
from distrun.host.interfaces import own_interfaces, reachable
from distrun.runner.planning.variables.environ import search_path
from distrun.runner.system.fan_out import call_for_each
from distrun.tools.doctor.machine_facts import first_line

_TIMEOUT = 120.0  # seconds for one attempt: importing TensorFlow on a busy machine takes long
_FACE = "import {package}, distrun.{face}; print({package}.__version__)"
_NCCL = """
import sys
from distrun.runtime.world.capabilities import nccl_built
from distrun.host.gpus import visible_gpus
import os
version, gpus = nccl_built(), visible_gpus(os.environ)
if not version:
    sys.exit("cupy or NCCL cannot be loaded: pip install 'distrun[cuda13]'")
if not gpus:
    sys.exit("there is no GPU")
print(f"NCCL {version}, GPUs: {gpus}")
"""
_KERNELS = """
import sys
from distrun import native
try:
    native.load()
except native.NoLibraryError as error:
    sys.exit(f"{error}: numpy does their work")
print(native.variants()[0])
"""
_SUM = """
import distrun, numpy
distrun.init()
assert distrun.size() == 2
assert list(distrun.allreduce(numpy.full(3, distrun.rank() + 1.0), op=distrun.Sum)) == [3, 3, 3]
"""


class NotThereError(Exception):
    """Something cannot be used, for the reason given."""


@dataclass(frozen=True)
class Attempt:
    """Something that a job may use, and how to try it."""

    group: str
    name: str
    try_it: Callable[[], str]
    """Returns a remark about it, such as its version, or "". Raises NotThereError."""


def report(attempts: Sequence[Attempt] | None = None, verbose: bool = False) -> str:
    """Try everything, or these attempts, as many at a time as there are cores, and return the results as text.

    With `verbose`, the whole reason is given where something does not work, instead of its last line.
    """
    attempts = ATTEMPTS if attempts is None else attempts
    tried = list(dict.fromkeys(attempt.try_it for attempt in attempts))  # some serve two entries
    results = dict(zip(tried, call_for_each(_result, tried, "check", os.cpu_count() or 1), strict=True))
    lines = [f"distrun {__version__}:"]
    for group in dict.fromkeys(attempt.group for attempt in attempts):
        lines += ["", f"Available {group}:"]
        lines += [_line(item.name, *results[item.try_it], verbose) for item in attempts if item.group == group]
    return "\n".join(lines)


def _line(name: str, works: bool, text: str, verbose: bool) -> str:
    if works:
        return f"    [X] {name} {text}".rstrip()
    return f"    [ ] {name}: {text if verbose else ''.join(text.strip().splitlines()[-1:])}".rstrip()


def _result(try_it: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, try_it()
    except NotThereError as error:
        return False, str(error)


def _output(*command: str, **environ: str) -> str:
    """Return the last line that a command prints.

    Raises:
        NotThereError: it fails. The text is what it has printed to the standard error.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
        )
    except subprocess.TimeoutExpired:
        raise NotThereError(f"there was no answer within {_TIMEOUT:g} s") from None
    if done.returncode:
        raise NotThereError(done.stderr.strip() or f"it ended with status {done.returncode}")
    return "".join(done.stdout.strip().splitlines()[-1:])


def _python(code: str) -> Callable[[], str]:
    return lambda: _output(sys.executable, "-c", code)


def _job(backend: str, *options: str) -> Callable[[], str]:
    command = (sys.executable, "-m", "distrun.runner", "-q", "-np", "2", "--oversubscribe", "--no-tag-output")
    return lambda: _output(*command, *options, sys.executable, "-c", _SUM, DISTRUN_BACKEND=backend)


def _program(name: str) -> Callable[[], str]:
    def find() -> str:
        path = shutil.which(name, path=search_path(os.environ.get("PATH", os.defpath)))  # as for a job
        if path is None:
            raise NotThereError(f"there is no {name} on PATH")
        return first_line([path, "--version"], _TIMEOUT)

    return find


def _tcp() -> str:
    """Connect to this machine by its addresses that other hosts can reach, one of each family."""
    interfaces = reachable(own_interfaces())
    if not interfaces:
        raise NotThereError("no interface of this machine can be reached by other hosts")
    first = {interface.ip.version: interface for interface in reversed(interfaces)}
    for version, interface in sorted(first.items()):
        try:
            family = socket.AF_INET6 if version == 6 else socket.AF_INET
            with socket.create_server((interface.address, 0), family=family) as server:
                socket.create_connection(server.getsockname()[:2], timeout=5.0).close()
        except OSError as error:
            raise NotThereError(f"{interface} cannot be connected to over IPv{version}: {error}") from None
    return " and ".join(f"by {first[version]} over IPv{version}" for version in sorted(first))


_OWN_JOB, _MPI_JOB = _job("shared_memory"), _job("mpi", "--launcher", "mpirun")
ATTEMPTS = (
    Attempt("Frameworks", "TensorFlow", _python(_FACE.format(package="tensorflow", face="tensorflow"))),
    Attempt("Frameworks", "PyTorch", _python(_FACE.format(package="torch", face="torch"))),
    Attempt("Frameworks", "Keras", _python(_FACE.format(package="keras", face="keras"))),
    Attempt("Frameworks", "JAX", _python(_FACE.format(package="jax", face="jax"))),
    Attempt("Frameworks", "NumPy", _python("import numpy, distrun; print(numpy.__version__)")),
    Attempt("Frameworks", "CuPy", _python("import cupy, distrun; print(cupy.__version__)")),
    Attempt("Launchers", "ssh", _python("import paramiko; print('through paramiko', paramiko.__version__)")),
    Attempt("Launchers", "srun", _program("srun")),
    Attempt("Launchers", "mpirun", _program("mpirun")),
    Attempt("Controllers", "distrun's own", _OWN_JOB),
    Attempt("Controllers", "MPI", _MPI_JOB),
    Attempt("Tensor Operations", "shared memory", _OWN_JOB),
    Attempt("Tensor Operations", "TCP", _tcp),
    Attempt("Tensor Operations", "MPI", _MPI_JOB),
    Attempt("Tensor Operations", "NCCL", _python(_NCCL)),
    Attempt("Tensor Operations", "kernels in C", _python(_KERNELS)),
)
"""All attempts. Each controller and operation is tried by a job of two ranks that add their arrays."""
