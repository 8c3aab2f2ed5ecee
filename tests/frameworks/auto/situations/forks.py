"""Run scripts in forks of a process that has imported the framework: plainly, and as the ranks of `distrun --auto`.

    python forks.py torch|keras-tensorflow|keras-jax|keras-torch [rehearse|cuda]

serves: each line of its input is a JSON object with `script`, the text, and `sizes`, numbers of ranks, where 1 is a
plain process. For each size it answers with a line, the JSON form of an `Outcome`. A rank does what `distrun --auto`
starts, `python -m distrun.auto global script.py`, in a process of its own for each script. Imports and the start of
Python are most of what a short script costs; here they are made once. With `rehearse`, the first steps are rehearsed as
on GPUs, and no rank is copied. With `cuda`, scripts and ranks share the first GPU, through the host's memory.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

DEADLINE = 300.0  # seconds until a run counts as hung; far more than one takes on a busy machine
_GRACE = 60.0  # seconds that the others have when a rank has failed; a rank waits 10 s for others to refuse, too
_MODULES = {
    "torch": ("numpy", "torch", "torch.utils.data", "torch._dynamo"),
    "keras-tensorflow": ("numpy", "tensorflow", "keras"),
    "keras-jax": ("numpy", "jax", "keras", "tensorflow"),  # which Keras imports for its data adapters
    "keras-torch": ("numpy", "torch", "torch._dynamo", "keras", "tensorflow"),
}
_OURS = ("distrun", "distrun.auto.__main__", "distrun.auto.running", "distrun.auto.frameworks", "distrun.torch")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of a script on some ranks."""

    size: int
    status: int | None
    """The status of the first process that failed, else 0; None: it had not ended at the deadline."""
    output: str
    errors: str
    """The standard error of all processes; the first one that failed comes last."""
    seconds: float
    """Processor time of all processes."""


def variables(backend: str, uses_gpu: bool = False) -> dict[str, str]:
    """Return the environment in which a server for a backend is started."""
    settings = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    gpu = {"CUDA_VISIBLE_DEVICES": "0", "DISTRUN_SHARE_GPUS": "1", "DISTRUN_GPU_BACKEND": "staged"} if uses_gpu else {}
    return {**os.environ, **settings, **threads, **gpu, "KERAS_BACKEND": backend.partition("-")[2] or "torch"}


def serve(backend: str, rehearse: bool) -> None:
    """Answer orders until the input ends."""
    for name in (*_MODULES[backend], *_OURS):
        importlib.import_module(name)
    if rehearse:
        _rehearse()
    gc.collect()
    gc.freeze()  # what is here already, no fork has to look at
    for line in sys.stdin:
        order = json.loads(line)
        for size in order["sizes"]:
            print(json.dumps(dataclasses.asdict(run(order["script"], size))), flush=True)


def _rehearse() -> None:
    """Have ranks do as if they used GPUs."""
    from distrun.auto import rehearsal
    from distrun.auto.torch.trial import copying

    rehearsal.visible_gpus = lambda environ: 1
    copying.is_on_gpu = lambda: True


def run(script: str, size: int) -> Outcome:
    """Run a script on `size` ranks, or plainly if that is 1, in a folder of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    folder = Path(tempfile.mkdtemp(prefix="situation-"))  # a TemporaryDirectory would be removed when a fork ends
    try:
        (folder / "script.py").write_text(script)
        environs = [{}] if size == 1 else _contracts(size)
        pids = [_fork(folder, rank, environ) for rank, environ in enumerate(environs)]
        status, failed = _wait(pids)
        texts = {which: [_text(folder, rank, which) for rank in range(size)] for which in ("out", "err")}
    finally:
        shutil.rmtree(folder)
    errors = texts["err"]
    if failed is not None:
        errors.append(errors.pop(failed))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(size, status, texts["out"][0], "\n".join(errors), seconds)


def _contracts(size: int) -> list[Mapping[str, str]]:
    """Return what the launcher would put into the environment of each rank."""
    import secrets

    from distrun.contract.launch import LaunchContract

    job, key = secrets.token_hex(16), secrets.token_hex(32)
    return [
        LaunchContract(job, key, rank, size, rank, size, 0, 1, "localhost", "127.0.0.1", 29399).to_environ()
        for rank in range(size)
    ]


def _text(folder: Path, rank: int, which: str) -> str:
    return (folder / f"{rank}.{which}").read_text(errors="replace")


def _fork(folder: Path, rank: int, environ: Mapping[str, str]) -> int:
    pid = os.fork()
    if not pid:
        _be_process(folder, rank, environ)
    return pid


def _be_process(folder: Path, rank: int, environ: Mapping[str, str]) -> NoReturn:
    """Run the script in this process, and end it as the interpreter does."""
    status = 1
    try:
        os.setsid()
        for number, which in ((1, "out"), (2, "err")):
            opened = os.open(folder / f"{rank}.{which}", os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        tmp = folder / f"tmp{rank}"
        tmp.mkdir()
        os.environ.update(environ, TMPDIR=str(tmp))
        tempfile.tempdir = None
        os.chdir(folder)
        status = _status(["script.py"], is_rank=bool(environ))
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _status(program: list[str], is_rank: bool) -> int:
    from distrun.auto import running
    from distrun.auto.__main__ import main
    from distrun.errors import UsageError

    try:
        if is_rank:
            return int(main(["global", *program]))
        running.run(program)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UsageError as error:
        print(f"distrun --auto: {error}", file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _wait(pids: Sequence[int]) -> tuple[int | None, int | None]:
    """Wait for processes; return the status of one that failed, and which it is. The rest are ended after it.

    It is one that refuses, where there is one, as the others then fail because it has left; else the first.
    """
    poll = select.poll()
    descriptors = {os.pidfd_open(pid): rank for rank, pid in enumerate(pids)}
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + DEADLINE
    status, failed, left = 0, None, set(range(len(pids)))
    while left:
        ended = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ended:
            break
        for descriptor, _ in ended:
            rank = descriptors[descriptor]
            poll.unregister(descriptor)
            left.discard(rank)
            code = os.waitstatus_to_exitcode(os.waitpid(pids[rank], 0)[1])
            if code and (failed is None or (code == 2 and status != 2)):
                status, failed = code, rank
                deadline = min(deadline, time.monotonic() + _GRACE)
    for pid in pids:  # all at once, so that none reports the end of another
        _kill_group(pid)
    for descriptor, rank in descriptors.items():
        if rank in left:
            os.waitpid(pids[rank], 0)
        os.close(descriptor)
    return (None if left and failed is None else status), failed


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    serve(sys.argv[1], "rehearse" in sys.argv[2:])
