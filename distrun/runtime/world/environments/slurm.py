"""Ranks started by Slurm's srun."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from distrun.contract.settings import Settings
from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.host import munge
from distrun.host.numerals import MOST_RANKS, whole_number
from distrun.runtime.transport.rendezvous.protocol import RendezvousEndpoint
from distrun.runtime.world.environments.base import Environment, likely_ports

_JOB = "SLURM_JOB_ID"
_STEP = "SLURM_STEP_ID"
_RANK = "SLURM_PROCID"
_SIZE = "SLURM_STEP_NUM_TASKS"
_LOCAL_RANK = "SLURM_LOCALID"
_HOST_INDEX = "SLURM_NODEID"
_RANKS_PER_HOST = "SLURM_STEP_TASKS_PER_NODE"
_HOSTNAME = "SLURMD_NODENAME"
_HOSTS = "SLURM_STEP_NODELIST"
_HOSTS_OF_JOB = "SLURM_JOB_NODELIST"
# Numbers from here on are not steps started by srun: 4294967290 is salloc's interactive shell, ...291 the batch script,
# ...292 the container for outside processes (slurm.h: SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT).
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Slurm(Environment):
    name = "Slurm's srun"

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        # A plain `python` in an sbatch script or a salloc shell has SLURM_JOB_ID, and even SLURM_PROCID=0 and the whole
        # allocation's SLURM_NTASKS, but the other tasks are never started: it is a world of one. Only steps have tasks.
        step = environ.get(_STEP, "")
        return _RANK in environ and step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP

    def topology(self) -> Topology:
        local_rank, host = self._number(_LOCAL_RANK), self._number(_HOST_INDEX)
        listed = self._text(_RANKS_PER_HOST)
        per_host = ranks_per_host(listed)
        if host >= len(per_host):
            raise UsageError(
                f"{_HOST_INDEX}={host} but {_RANKS_PER_HOST}={listed!r} has {len(per_host)} hosts: "
                "start the script with one plain `srun`, or with `distrun`"
            )
        return Topology(
            rank=self._number(_RANK),
            size=self._number(_SIZE),
            local_rank=local_rank,
            local_size=per_host[host],
            cross_rank=sum(count > local_rank for count in per_host[:host]),
            cross_size=sum(count > local_rank for count in per_host),
            hostname=self._environ.get(_HOSTNAME) or socket.gethostname(),
        )

    def job_name(self) -> str:
        return f"slurm.{self._text(_JOB)}.{self._text(_STEP)}.{self._text(_HOST_INDEX)}"

    def endpoint(self) -> RendezvousEndpoint:
        hosts = self._environ.get(_HOSTS) or self._text(_HOSTS_OF_JOB)
        ports = likely_ports(f"{self._text(_JOB)}.{self._text(_STEP)}")
        addresses = tuple((first_host(hosts), port) for port in ports)
        if (key := Settings.of(self._environ).key) is not None:
            return RendezvousEndpoint(addresses, key)
        if not munge.is_here():
            raise UsageError(
                "the job has several hosts, and without munge its ranks have no secret to know one another by: "
                "install munge on every host, set DISTRUN_KEY to the same text on all ranks, or start the script "
                "with `distrun`"
            )
        return RendezvousEndpoint(addresses, greeting=munge.new_key, opener=munge.key_of)


def first_host(text: str) -> str:
    """Return the first name in a host list as Slurm writes it, the host of rank 0: node01 for
    `node[01-04,07],gpu[1-2]-[0-1]`.

    Raises:
        UsageError: `text` is not a host list.
    """
    match = re.match(r"(?:[^,\[\]]|\[\d+[\d,-]*\])+(?=,|$)", text, re.ASCII)
    if match is None:
        raise UsageError(f"{_HOSTS}={text!r} is not a list of hosts like node[01-04]: start the script with `distrun`")
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", match[0])


def ranks_per_host(text: str) -> list[int]:
    """Return the counts in Slurm's list of task counts, expanded, in the order of the step's hosts.

    Raises:
        UsageError: `text` is not a list of task counts.
    """
    # 4            one host
    # 2(x2),1      three hosts
    # 4(x128)      a cluster
    counts: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word, re.ASCII)
        count, times = (whole_number(text) for text in (match[1], match[2] or "1")) if match else (None, None)
        if count is None or times is None or len(counts) + times > MOST_RANKS:
            raise UsageError(
                f"{_RANKS_PER_HOST}={text!r} is not a list of counts like 2(x2),1: start the script with `distrun`"
            )
        counts += [count] * times
    return counts
