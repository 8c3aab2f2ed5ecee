"""The command line of torchrun, which is the same as that for `python -m torch.distributed.run`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from distrun.errors import UsageError
from distrun.host.endpoints import LAST_PORT, format_endpoint
from distrun.host.interfaces import is_numeric
from distrun.host.numerals import whole_number
from distrun.runner.command_lines.table import Becomes, Holds, Ignored, Program, Refused, Translation, flag

_MASTER = ("127.0.0.1", "29500")  # torchrun's defaults
_NO_RESTARTS = "ranks are restarted where one launcher starts them all: with --nnodes 1, or with distrun -H"
_OWN_LOGS = "output is kept by --log-dir, and the first failure is told"
_NO_FILTERS = "lines of output are not picked out"
# Words for `_finish` only. No option of distrun begins with @.
_MODULE, _NO_PYTHON, _ADDRESS, _PORT = "@module", "@no-python", "@address", "@port"


def _backend(name: str) -> list[str]:
    if name not in ("static", "c10d"):
        raise UsageError("the launchers meet without a server: leave it out, or give static or c10d")
    return []


def _local_address(address: str) -> list[str] | Ignored:
    return ["--network", address] if is_numeric(address) else Ignored("addresses are told, not names")


def _bound_to(mode: str) -> list[str]:
    places = {"node": "numa", "socket": "socket", "exclusive": "core", "core-complex": "numa"}
    if mode not in places:
        raise UsageError(f"allowed are {', '.join(places)}")
    return ["--bind-to", places[mode]]


def _finish(translation: Translation) -> Translation:
    """Combine address and port to the endpoint, and add the interpreter to the command of a script."""
    rest, found = [], {}
    for word in translation.options:
        name, _, value = word.partition("=")
        if word.startswith("@"):
            found[name] = value
        else:
            rest.append(word)
    ignored = list(translation.ignored)
    nodes = rest[len(rest) - rest[::-1].index("--nnodes")] if "--nnodes" in rest else "1"
    if nodes not in ("1", "1:1"):
        while "--reset-limit" in rest:
            at = rest.index("--reset-limit")
            if rest[at + 1] != "0":
                ignored.append((f"--max-restarts {rest[at + 1]}", _NO_RESTARTS))
            del rest[at : at + 2]
        if "--rdzv-endpoint" not in rest:
            address, port = found.get(_ADDRESS, _MASTER[0]).strip("[]"), found.get(_PORT, _MASTER[1])
            rest += ["--rdzv-endpoint", format_endpoint(address, whole_number(port, most=LAST_PORT) or 0)]
    command = translation.command
    if _NO_PYTHON in found and _MODULE in found:
        raise UsageError("torchrun --no-python and --module exclude each other: a module needs Python")
    if command and _NO_PYTHON not in found:
        python = os.environ.get("PYTHON_EXEC", sys.executable)
        command = (python, "-u", *(["-m"] if _MODULE in found else []), *command)
    return replace(translation, options=tuple(rest), command=command, ignored=tuple(ignored))


PROGRAM = Program(
    "torchrun",
    (
        flag("--nnodes N[:M]", Becomes("--nnodes {}")),
        flag("--nproc-per-node --nproc_per_node N", Becomes("--nproc-per-node {}")),
        flag("--node-rank --node_rank K", Becomes("--node-rank {}")),
        flag("--rdzv-backend --rdzv_backend NAME", Becomes("static and c10d are the same", _backend)),
        flag("--rdzv-endpoint --rdzv_endpoint HOST[:PORT]", Becomes("--rdzv-endpoint {}")),
        flag("--rdzv-id --rdzv_id ID", Becomes("--rdzv-id {}")),
        flag("--rdzv-conf --rdzv_conf K=V,...", Becomes("--rdzv-conf {}")),
        flag("--master-addr --master_addr HOST", Becomes("--rdzv-endpoint {}:29500", lambda it: [f"{_ADDRESS}={it}"])),
        flag("--master-port --master_port PORT", Becomes("--rdzv-endpoint HOST:{}", lambda it: [f"{_PORT}={it}"])),
        flag("--local-addr --local_addr ADDRESS", Becomes("--network {}", _local_address)),
        flag("--standalone", Holds("a job on one host needs no rendezvous")),
        flag("-m --module", Becomes("python -m COMMAND", lambda: [_MODULE])),
        flag("--no-python --no_python", Becomes("COMMAND as it is, without python", lambda: [_NO_PYTHON])),
        flag("--run-path --run_path", Holds("a script is run by its path")),
        flag("--role NAME", Becomes("-x ROLE_NAME={}")),
        flag("--log-dir --log_dir DIR", Becomes("--output-dir {}")),
        flag("-r --redirects STREAMS", Becomes("--redirect {}", lambda it: [] if it == "0" else ["--redirect", it])),
        flag("-t --tee STREAMS", Becomes("--tag-output", lambda streams: [] if streams == "0" else ["--tag-output"])),
        flag("--local-ranks-filter --local_ranks_filter RANKS", Becomes("--local-rank-filter {}")),
        flag("--shutdown-timeout --shutdown_timeout S", Becomes("--grace {}")),
        flag("--max-restarts --max_restarts N", Becomes("--reset-limit {}")),
        flag("--monitor-interval --monitor_interval S", Holds("ends of ranks are noticed at once")),
        flag("--start-method --start_method NAME", Holds("ranks are new processes")),
        flag("--signals-to-handle --signals_to_handle LIST", Holds("signals are passed on to the ranks")),
        flag("--event-log-handler --event_log_handler NAME", Ignored(_OWN_LOGS)),
        flag("--logs-specs --logs_specs NAME", Ignored(_OWN_LOGS)),
        flag("--duplicate-stdout-filters --duplicate_stdout_filters LIST", Ignored(_NO_FILTERS)),
        flag("--duplicate-stderr-filters --duplicate_stderr_filters LIST", Ignored(_NO_FILTERS)),
        flag("--numa-binding --numa_binding MODE", Becomes("--bind-to numa, socket or core", _bound_to)),
        flag("--virtual-local-rank --virtual_local_rank", Refused("every rank sees all GPUs: leave it out")),
    ),
    defaults=("--no-tag-output", "--nproc-per-node", "1", "--torchrun-env"),
    abbreviations=True,
    finish=_finish,
    variables="PET_",
)
