"""The options of a launcher that is started on every node: text in, `RendezvousOptions` and a number of ranks out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distrun.contract.settings import Settings
from distrun.errors import UsageError
from distrun.host.endpoints import LAST_PORT
from distrun.host.gpus import visible_gpus
from distrun.host.numerals import MOST_RANKS, MOST_SLOTS, real_number, whole_number
from distrun.runner.hosts.joining.endpoint import DEFAULT_TIMEOUT, JoinEndpoint, parse_join_endpoint
from distrun.runner.hosts.joining.roster import LAST_CALL
from distrun.runner.hosts.nodes.rendezvous import RendezvousOptions
from distrun.runner.system.machine import count_cores

_UNSUITABLE = ("np", "hosts", "hostfile", "slots", "ranks_per_host", "launcher", "mpi_args")
_YES, _NO = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")


@dataclass(frozen=True)
class NodeOptions:
    """The options of one node's launcher, once understood."""

    ranks: int
    """The number of ranks of this node."""
    rendezvous: RendezvousOptions | None
    """Where the launchers meet. None = this is the only node."""
    index: int | None = None
    """The number of this node among all, as `--node-rank` gives it. None = any."""


def node_options(options: Mapping[str, Any], environ: Mapping[str, str]) -> NodeOptions | None:
    """Return what `options` say of nodes; None when none of them is about nodes.

    Args:
        options: the values of the command line, under the names of torchrun's options.
        environ: the launcher's environment, for the secret and the GPUs.

    Raises:
        UsageError: an option cannot be met, or excludes another.
    """
    conf = parse_conf(options["rdzv_conf"] or "")
    least, most = parse_size(options["nnodes"] or "1")
    last_call = _seconds(conf, "last_call_timeout", LAST_CALL)
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
    if most == 1:
        return NodeOptions(ranks, None)
    index = options["node_rank"]
    if index is not None and index not in range(most):
        raise UsageError(f"--node-rank {index} is not one of {most} nodes: allowed are 0 to {most - 1}")
    if options["stdin"] != "none":
        raise UsageError(f"--stdin {options['stdin']} does not go with --nnodes {options['nnodes']}: leave it out")
    endpoint = _endpoint(options, conf, environ)
    return NodeOptions(ranks, RendezvousOptions(endpoint, least, most, last_call, _switch(conf, "is_host")), index)


def count_ranks(text: str, environ: Mapping[str, str]) -> int:
    """Return the number that `--nproc-per-node` stands for on this machine.

    Raises:
        UsageError: it is not a number of ranks.
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


def parse_size(text: str) -> tuple[int, int]:
    """Return the smallest and the largest number of nodes that `--nnodes` allows, `2` or `2:4`.

    Raises:
        UsageError: it is something else.
    """
    first, _, last = text.partition(":")
    least, most = whole_number(first), whole_number(last or first)
    if least is None or most is None or least > most:
        raise UsageError(
            f"--nnodes {text} is no number of nodes: allowed are N and MIN:MAX, as in 2 and 2:4, from 1 to {MOST_RANKS}"
        )
    return least, most


def parse_conf(text: str) -> dict[str, str]:
    """Return the settings of `--rdzv-conf`, `timeout=900,is_host=1`, also those that distrun does not use.

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


def _endpoint(options: Mapping[str, Any], conf: Mapping[str, str], environ: Mapping[str, str]) -> JoinEndpoint:
    text = options["rdzv_endpoint"]
    if not text:
        raise UsageError(
            f"--nnodes {options['nnodes']} needs a place where the nodes meet: give --rdzv-endpoint HOST:PORT, an "
            "address of one of them and a free port there, the same on all"
        )
    try:
        address = parse_join_endpoint(text)
    except ValueError:
        raise UsageError(
            f"--rdzv-endpoint {text!r} is no place to meet: allowed are HOST and HOST:PORT with ports 1 to {LAST_PORT}"
        ) from None
    settings = Settings.of(environ)
    return JoinEndpoint(
        address,
        # Without a secret, the launchers know each other only by the name of the job.
        settings.key if settings.key is not None else (options["rdzv_id"] or "none").encode(),
        _seconds(conf, "timeout", _seconds(conf, "join_timeout", DEFAULT_TIMEOUT)),
        is_encrypted=options.get("encrypt") or settings.encrypt,
        purpose="rendezvous",
        key_name="DISTRUN_KEY (or --rdzv-id where that is unset)",
        timeout_option="--rdzv-conf timeout=S",
    )


def _seconds(conf: Mapping[str, str], name: str, default: float) -> float:
    seconds = real_number(conf[name]) if name in conf else default
    if not seconds:
        raise UsageError(f"--rdzv-conf {name}={conf[name]}: allowed are seconds > 0")
    return seconds


def _switch(conf: Mapping[str, str], name: str) -> bool | None:
    value = conf.get(name, "").lower()
    if value and value not in (*_YES, *_NO):
        raise UsageError(f"--rdzv-conf {name}={conf[name]}: allowed are true and false")
    return value in _YES if value else None


def _spelt(name: str) -> str:
    return {"np": "-np"}.get(name, "--" + name.replace("_", "-"))
