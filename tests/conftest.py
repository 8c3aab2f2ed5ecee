"""Fixtures for ranks that believe that they are on several hosts, or have GPUs; and what holds for all tests."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from machines.rank_programs import SLEEP
from running_distrun import Distrun, python_command
from session.feature_matrix import FeaturePlugin
from session.hypothesis_profiles import load_profile
from session.leftovers import Leftovers
from session.processor_time import ProcessorTimePlugin
from session.tiers import TIERS, TierPlugin
from warm_rank import program_folders
from warm_ranks import Command, WarmJobs

from distrun.contract.launch import LaunchContract
from distrun.host.endpoints import free_port
from distrun.host.gpus import visible_gpus

DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test
SIMULATOR = Path(__file__).parent / "simulator"
JITTER = 500  # microseconds by which a simulated GPU is late

if visible_gpus(os.environ):  # most tests have more ranks than a machine has GPUs
    os.environ.setdefault("DISTRUN_SHARE_GPUS", "1")

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts threads that spin, in each process of a test

# Signals --------------------------------------------------------------------------------------------------------------

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


@pytest.fixture(autouse=True, scope="session")
def _default_signals() -> Iterator[None]:
    """Reset the signals that nohup, a background shell or CI ignores or blocks: launched processes inherit them."""
    before = {signum: signal.signal(signum, signal.SIG_DFL) for signum in _SIGNALS}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for signum, handler in before.items():
        signal.signal(signum, handler or signal.SIG_DFL)


# Real launches --------------------------------------------------------------------------------------------------------


@pytest.fixture
def python() -> Callable[[str], list[str]]:
    """Returns the command of a rank that executes some Python."""
    return python_command


@pytest.fixture
def output(distrun: Callable[..., Distrun]) -> Callable[..., bytes]:
    """Runs `distrun`, as the folder of the test has it, to its successful end; returns what it has printed."""

    def run(*arguments: str, **environ: str) -> bytes:
        job = distrun(*arguments, **environ)
        job.ended(0)
        return job.stdout.data

    return run


@pytest.fixture
def ready(distrun: Callable[..., Distrun]) -> Callable[..., Distrun]:
    """Starts `distrun` on ranks that execute some Python, and returns it when so many of them have printed a sign."""

    def start(ranks: int, *options: str, code: str = SLEEP, sign: bytes = b"ready", **more: Any) -> Distrun:
        job = distrun(*options, *python_command(code), **more)
        job.stdout.wait_for(sign, ranks)
        return job

    return start


# Ranks of several hosts, all of them this machine ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def contracts() -> Iterator[Callable[[Sequence[int]], list[LaunchContract]]]:
    """Return a function that makes the launch contracts of a job with that many ranks on each host."""
    with contextlib.ExitStack() as ports:

        def make(counts: Sequence[int]) -> list[LaunchContract]:
            return _contracts(counts, ports.enter_context(_kept_port()))

        yield make


@pytest.fixture(scope="session")
def warm_jobs() -> Iterator[WarmJobs]:
    """Jobs of ranks that stay up between tests."""
    jobs = WarmJobs()
    yield jobs
    jobs.close()


@pytest.fixture
def run_on_hosts(
    contracts: Callable[[Sequence[int]], list[LaunchContract]], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a command to its end on the given number of ranks of each host."""

    def run(
        command: Sequence[str], counts: Sequence[int], environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        deadline = time.monotonic() + DEADLINE
        ranks: list[subprocess.Popen[bytes]] = []
        outputs = [(tmp_path / f"{rank}.{name}").open("w+") for rank in range(sum(counts)) for name in ("out", "err")]
        with contextlib.ExitStack() as after:
            for output in outputs:
                after.enter_context(output)
            for contract, stdout, stderr in zip(contracts(counts), outputs[::2], outputs[1::2], strict=True):
                born = {**environ, **contract.to_environ()}
                ranks.append(subprocess.Popen(command, env=born, stdout=stdout, stderr=stderr))
                after.callback(ranks[-1].kill)
            statuses = [rank.wait(max(0.0, deadline - time.monotonic())) for rank in ranks]
            texts = [Path(output.name).read_text() for output in outputs]
        return subprocess.CompletedProcess(
            command, next(filter(None, statuses), 0), "".join(texts[::2]), "".join(texts[1::2])
        )

    return run


@contextlib.contextmanager
def _kept_port() -> Iterator[int]:
    """Bind a port without listening, as the agent of rank 0's host keeps it free for rank 0."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


def _contracts(counts: Sequence[int], port: int) -> list[LaunchContract]:
    """Return the launch contracts of a job with that many ranks on each host, all of them this machine."""
    job, key, rendezvous = secrets.token_hex(16), secrets.token_hex(32), f"127.0.0.1:{port}" if len(counts) > 1 else ""
    names = [f"host{host}" for host in range(len(counts))] if len(counts) > 1 else ["localhost"]
    master_port = free_port()  # a job's own: torch's store of another one would answer as well
    made: list[LaunchContract] = []
    for host, count in enumerate(counts):
        for local in range(count):
            having = [other for other, ranks in enumerate(counts) if ranks > local]
            made.append(
                LaunchContract(
                    *(job, key, len(made), sum(counts), local, count, having.index(host), len(having), names[host]),
                    *("127.0.0.1", master_port, rendezvous),
                )
            )
    return made


@pytest.fixture
def run_ranks(
    run_on_hosts: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a command to its end on ranks of this host, by distrun, or of several hosts."""

    def run(
        command: Sequence[str], size: int | tuple[int, ...], environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        if isinstance(size, tuple):
            return run_on_hosts(command, size, environ)
        return subprocess.run(
            [sys.executable, "-m", "distrun.runner", "-np", str(size), *command],
            env=environ,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    return run


@pytest.fixture
def run_warm(warm_jobs: WarmJobs, contracts: Callable[[Sequence[int]], list[LaunchContract]]) -> Callable[..., str]:
    """Runs a program on ranks that stay up, a job for each `kind` of program and `size`; returns what they printed.

    `size` is as for `run_ranks`. The ranks check everything themselves.
    """

    def run(kind: str, size: int | tuple[int, ...], program: Path, *arguments: str, **environ: str) -> str:
        usual = {**os.environ, "OMP_NUM_THREADS": "1"}

        def commands() -> list[Command]:
            if isinstance(size, tuple):
                return [([], {**usual, **contract.to_environ()}) for contract in contracts(size)]
            return [([sys.executable, "-m", "distrun.runner", "-np", str(size)], usual)]

        ranks = size if isinstance(size, int) else sum(size)
        return warm_jobs.get(f"{kind} {size}", commands, ranks).run(program, *arguments, **environ)

    return run


# Ranks with simulated GPUs --------------------------------------------------------------------------------------------


def _simulated_environ(gpus: int, folder: Path, kernels: Path) -> dict[str, str]:
    """Return an environment with simulated GPUs on each host; `folder` stands for /proc/driver/nvidia/gpus."""
    return {
        **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        "PYTHONPATH": os.pathsep.join([str(SIMULATOR), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        "SIMULATED_GPUS": str(gpus),
        "SIMULATED_GPU_FOLDER": str(folder),
        "SIMULATED_GPU_JITTER": str(JITTER),
        "SIMULATED_KERNEL_CACHE": str(kernels),
    }


@pytest.fixture
def gpu_environ(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, str]]:
    """Return a function that returns the variables of processes on a host with so many simulated GPUs."""
    return lambda gpus: _simulated_environ(gpus, tmp_path / "gpus", tmp_path_factory.getbasetemp() / "kernels")


@pytest.fixture
def gpu_job(
    run_ranks: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """Return a function that runs a program on `size` ranks with a simulated GPU each, and returns their output.

    `size` may also be the numbers of ranks on each of several hosts, and SIMULATED_GPUS another number of GPUs per
    host. The ranks check everything themselves; where they are to `fail`, or may (None), stderr follows the output.
    """

    def run(
        program: Path, size: int | tuple[int, ...], *arguments: str, fail: bool | None = False, **environ: str
    ) -> str:
        command = [sys.executable, str(program), *arguments]
        gpus = size if isinstance(size, int) else max(size)
        simulated = _simulated_environ(gpus, tmp_path / "gpus", tmp_path_factory.getbasetemp() / "kernels")
        simulated["PYTHONPATH"] = os.pathsep.join([simulated["PYTHONPATH"], *map(str, program_folders(program)[1:])])
        # Two ranks make no offers where there is a stall timeout.
        timeout = "60" if "GPU_TIMEOUT" in environ else "0"
        environ = {**simulated, "DISTRUN_STALL_TIMEOUT": timeout, **environ}
        done = run_ranks(command, size, environ)
        both = f"{done.stdout[-5000:]}\n{done.stderr[-10000:]}"
        assert fail is None or (done.returncode != 0) is fail, f"exit status {done.returncode}\n{both}"
        return done.stdout if fail is False else both

    return run


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The simulated GPU in this process: `import cupy` finds it, and this is the module `simulator`.

    At the end `cupy` is gone again, and no violation must be left that the test has not cleared.
    """

    def loaded() -> list[str]:
        # The real cupy loads cupyx as soon as somebody looks at it, and that would need the real cupy.
        return [name for name in sys.modules if name.split(".")[0] in ("cupy", "cupyx")]

    monkeypatch.syspath_prepend(SIMULATOR)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("SIMULATED_KERNEL_CACHE", str(tmp_path_factory.getbasetemp() / "kernels"))
    before = {name: sys.modules.pop(name) for name in loaded()}
    import simulator

    from distrun.runtime.gpu import driver

    simulator.forget()
    monkeypatch.setattr(driver, "ctypes", simulator.libcuda.patched())
    yield simulator
    for name in loaded():
        del sys.modules[name]
    sys.modules.update(before)
    assert simulator.violations(clear=True) == []


# The whole session ----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-features", action="store_true", help="write docs/features.md from what the tests have shown"
    )
    parser.addoption(
        "--tier", action="append", choices=TIERS, default=[], help="run the tests of this tier only; may be repeated"
    )


def pytest_configure(config: pytest.Config) -> None:
    tiers = config.getoption("--tier")
    load_profile(is_gate=tiers == ["gate"])
    config.pluginmanager.register(FeaturePlugin(config.getoption("--write-features")), "distrun-features")
    config.pluginmanager.register(Leftovers(), "distrun-leftovers")
    config.pluginmanager.register(ProcessorTimePlugin(is_gate=tiers == ["gate"]), "distrun-processor-time")
    config.pluginmanager.register(TierPlugin(tiers), "distrun-tiers")
