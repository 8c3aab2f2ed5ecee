"""The options of a launch in groups, for `distrun help GROUP`."""

from __future__ import annotations

from typing import NamedTuple


class Group(NamedTuple):
    """Options for one purpose."""

    title: str
    options: str
    """The options, by one spelling of each."""
    page: str
    """The page of the manual, in docs/."""


GROUPS = {
    "ranks": Group(
        "How many ranks, and where",
        "-np -H --hostfile --slots --ranks-per-host --oversubscribe --map-by --bind-to --report-bindings --share-gpus "
        "--launcher --mpi-args --dry-run",
        "launching",
    ),
    "scripts": Group(
        "Scripts that were not written for distrun",
        "--auto --horovod --torch-backend --tf-config --ps --openmpi-env --torchrun-env",
        "launching",
    ),
    "files": Group(
        "Variables, code and packages on other hosts",
        "-x --wdir --ship --ship-limit --bootstrap --no-bootstrap --python",
        "bare-hosts",
    ),
    "settings": Group("Options from a file", "--profile", "settings"),
    "output": Group(
        "What is printed",
        "--output-dir --redirect --tag-output --prefix-output-with-timestamp --rank-filter --local-rank-filter --stdin "
        "-q -v --check-build --version",
        "launching",
    ),
    "watching": Group(
        "Where the time goes",
        "--live --report --single-rank-step --timeline --timeline-steps --timeline-operations --timeline-limit "
        "--timeline-mark-cycles --metrics --scalars",
        "finding-slowness",
    ),
    "times": Group(
        "How long things may take",
        "--start-timeout --timeout --grace --stall-warning --stall-timeout --keepalive",
        "when-it-fails",
    ),
    "elastic": Group(
        "Going on when ranks and hosts fail or come",
        "--elastic --min-np --max-np --hosts-from --spares --max-restarts --restart-window --reset-limit --cooldown "
        "--elastic-timeout",
        "elastic",
    ),
    "ssh": Group(
        "Reaching other hosts",
        "--ssh-port --ssh-identity-file --ssh-option --ssh-accept-new",
        "several-hosts",
    ),
    "network": Group(
        "What ranks send each other",
        "--network --ports --encrypt --wire-dtype --algorithm --autotune --autotune-log-file "
        "--autotune-allow-wire-dtype",
        "several-hosts",
    ),
    "nodes": Group(
        "A launcher on every node, as with torchrun",
        "--nnodes --nproc-per-node --node-rank --rdzv-endpoint --rdzv-id --rdzv-conf",
        "several-hosts",
    ),
    "servers": Group(
        "Parameter servers",
        "--servers --server-restarts --server-hosts --server-checkpoint",
        "parameter-servers",
    ),
}
