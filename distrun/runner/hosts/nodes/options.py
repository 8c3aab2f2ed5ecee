"""The options of a launcher that is started on every node: text in, where to meet and how many ranks out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distrun.contract.settings import Settings
from distrun.errors import UsageError
from distrun.host.endpoints import LAST_PORT, parse_endpoint
from distrun.host.gpus import visible_gpus
from distrun.host.numerals import MOST_RANKS, MOST_SLOTS, whole_number
from distrun.runner.hosts.nodes.rendezvous import Place, secret_of
from distrun.runner.hosts.nodes.roster import Size
from distrun.runner.system.machine import count_cores

DEFAULT_PORT = 29400
"""torchrun's, for an endpoint without one."""
TIMEOUT = 600.0
"""Seconds in which all nodes have to come, as in torchrun."""
_UNSUITABLE = ("np", "hosts", "hostfile", "slots", "ranks_per_host", "launcher", "mpi_args")
_YES, _NO = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


@dataclass(frozen=True)
class NodeOptions:
    """This node's share in the job."""

    ranks: int
    place: Place | None
    """Where the nodes meet; None = this is the only one."""
    number: int | None = None
    """The place among the nodes that is asked for; None = any."""


def node_options(options: Mapping[str, Any], environ: Mapping[str, str]) -> NodeOptions | None:
    """Return what the options say; None when they do not speak of nodes.

    Args:
        options: the values of the command line; the names are those of torchrun's options.
        environ: the launcher's environment, for the secret and the GPUs.

    Raises:
        UsageError: an option cannot be met, or does not go with others.
    """
    size = parse_size(options["nnodes"] or "1", parse_conf(options["rdzv_conf"] or ""))
    if options["nnodes"] is None and options["nproc_per_node"] is None:
        for name in ("node_rank", "rdzv_endpoint", "rdzv_conf"):
            if options[name] is not None:
                raise UsageError(f"{_spelt(name)} {options[name]} needs --nnodes: give it on every node")
        return None
    for name in _UNSUITABLE:
        if options[name] is not None:
            given = "--nnodes" if options["nnodes"] is not None else "--nproc-per-node"
            raise UsageError(
                f"{given} and {_spelt(name)} exclude each other: with {given} each node has its own launcher, which "
                "starts --nproc-per-node ranks there"
            )
    ranks = count_ranks(options["nproc_per_node"] or "1", environ)
    if size.most == 1:
        return NodeOptions(ranks, None)
    number = options["node_rank"]
    if number is not None and number not in range(size.most):
        raise UsageError(f"--node-rank {number} is not one of {size.most} nodes: allowed are 0 to {size.most - 1}")
    if options["stdin"] != "none":
        raise UsageError(f"--stdin {options['stdin']} does not go with --nnodes {size}: leave it out")
    return NodeOptions(ranks, _place(options, size, environ), number)


def count_ranks(text: str, environ: Mapping[str, str]) -> int:
    """Return the number that `--nproc-per-node` stands for on this machine.

    Raises:
        UsageError: it is no such number.
    """
    gpus = visible_gpus(environ)
    words = {"auto": gpus or count_cores(), "gpu": gpus, "cpu": count_cores()}
    if text == "gpu" and not gpus:
        raise UsageError("--nproc-per-node gpu: this machine shows no GPU; give a number, or auto")
    if text in words:
        return words[text]
    ranks = whole_number(text, most=MOST_SLOTS)
    if ranks is None:
        raise UsageError(
            f"--nproc-per-node {text} is no number of ranks: allowed are 1 to {MOST_SLOTS}, auto, gpu and cpu"
        )
    return ranks


def parse_size(text: str, conf: Mapping[str, str]) -> Size:
    """Return how many nodes `--nnodes` asks for, `2` or `2:4`.

    Raises:
        UsageError: it is something else.
    """
    first, _, last = text.partition(":")
    least, most = whole_number(first), whole_number(last or first)
    if least is None or most is None or least > most:
        raise UsageError(
            f"--nnodes {text} is no number of nodes: allowed are N and MIN:MAX, as in 2 and 2:4, from 1 to {MOST_RANKS}"
        )
    return Size(least, most, _seconds(conf, "last_call_timeout", Size.last_call))


def parse_conf(text: str) -> dict[str, str]:
    """Return the settings of `--rdzv-conf`, `timeout=900,is_host=1`. Those that mean nothing to us are kept too.

    Raises:
        UsageError: it is something else.
    """
    conf = {}
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        name, equals, value = entry.partition("=")
        if not (name.strip() and equals):
            raise UsageError(
                f"--rdzv-conf {text}: {entry!r} is no setting; allowed are NAME=VALUE,... as in timeout=900"
            )
        conf[name.strip()] = value.strip()
    return conf


def _place(options: Mapping[str, Any], size: Size, environ: Mapping[str, str]) -> Place:
    conf = parse_conf(options["rdzv_conf"] or "")
    text = options["rdzv_endpoint"]
    if not text:
        raise UsageError(
            f"--nnodes {size} needs a place where the nodes meet: give --rdzv-endpoint HOST:PORT, an address of one of "
            "them and a free port there, the same on all"
        )
    settings = Settings.of(environ)
    secret = secret_of(settings.key, options["rdzv_id"] or "none")
    is_encrypted = options.get("encrypt") or settings.encrypt
    timeout = _seconds(conf, "timeout", _seconds(conf, "join_timeout", TIMEOUT))
    return Place(_endpoint(text), secret, size, timeout, _switch(conf, "is_host"), is_encrypted)


def _endpoint(text: str) -> tuple[str, int]:
    is_complete = (text.startswith("[") and not text.endswith("]")) or text.count(":") == 1
    try:
        return parse_endpoint(text if is_complete else f"[{text.strip('[]')}]:{DEFAULT_PORT}")
    except ValueError:
        raise UsageError(
            f"--rdzv-endpoint {text!r} is no place to meet: allowed are HOST and HOST:PORT with ports 1 to {LAST_PORT}"
        ) from None


def _seconds(conf: Mapping[str, str], name: str, default: float) -> float:
    try:
        seconds = float(conf.get(name, default))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--rdzv-conf {name}={conf[name]}: allowed are seconds > 0")
    return seconds


def _switch(conf: Mapping[str, str], name: str) -> bool | None:
    value = conf.get(name, "").lower()
    if value and value not in (*_YES, *_NO):
        raise UsageError(f"--rdzv-conf {name}={conf[name]}: allowed are true and false")
    return value in _YES if value else None


def _spelt(name: str) -> str:
    return {"np": "-np"}.get(name, "--" + name.replace("_", "-"))
