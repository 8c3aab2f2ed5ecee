"""Jobs of PBS Professional, OpenPBS and Torque."""

from __future__ import annotations

from collections.abc import Mapping

from distrun.host.numerals import whole_number
from distrun.runner.planning.allocation.allocated import Allocation, read_lines
from distrun.runner.planning.hosts import Host, merge

# PBS Professional, select=2:ncpus=8:mpiprocs=2    x1000c0s0b0n0.hsn      a line per slot (mpiprocs, 1 by default)
#                                                  x1000c0s0b0n0.hsn
#                                                  x1000c0s1b0n0.hsn
#                                                  x1000c0s1b0n0.hsn
# Torque, nodes=2:ppn=2                            the same, or with some settings a line per host and PBS_NUM_PPN=2
_FILE = "PBS_NODEFILE"
_PER_HOST = "PBS_NUM_PPN"
_JOB = "PBS_JOBID"


def read(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation in PBS's variables and its node file, or None outside of its jobs.

    Raises:
        UsageError: the file cannot be read, or names no host.
    """
    if not (file := environ.get(_FILE)):
        return None
    hosts = merge(Host(line.split()[0], 1) for line in read_lines(_FILE, file, "PBS"))
    per_host = whole_number(environ.get(_PER_HOST, ""))
    if per_host and all(host.slots == 1 for host in hosts):
        hosts = [Host(host.name, per_host) for host in hosts]
    return Allocation("PBS", tuple(hosts), environ.get(_JOB, ""))
