"""Jobs of PBS (PBS Professional, OpenPBS, Torque), IBM Spectrum LSF, and Grid Engine (SGE, Son of Grid Engine, Univa,
Altair), which write their hosts into a file.
"""

from __future__ import annotations

from collections.abc import Mapping

from distrun.errors import UsageError
from distrun.host.numerals import whole_number
from distrun.runner.planning.allocation.allocated import Allocation, read_lines, remedy
from distrun.runner.planning.hosts import Host, merge


# PBS Professional, select=2:ncpus=8:mpiprocs=2    x1000c0s0b0n0.hsn      a line per slot (mpiprocs, 1 by default)
#                                                  x1000c0s0b0n0.hsn
#                                                  x1000c0s1b0n0.hsn
#                                                  x1000c0s1b0n0.hsn
# Torque, nodes=2:ppn=2                            the same, or with some settings a line per host and PBS_NUM_PPN=2
def pbs(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation in PBS's variables and its node file, or None outside of its jobs.

    Raises:
        UsageError: the file cannot be read, or names no host.
    """
    if not (file := environ.get("PBS_NODEFILE")):
        return None
    hosts = merge(Host(line.split()[0], 1) for line in read_lines("PBS_NODEFILE", file, "PBS"))
    per_host = whole_number(environ.get("PBS_NUM_PPN", ""))
    if per_host and all(host.slots == 1 for host in hosts):
        hosts = [Host(host.name, per_host) for host in hosts]
    return Allocation("PBS", tuple(hosts), environ.get("PBS_JOBID", ""))


# bsub -n 8 -R span[ptile=4]:  LSB_JOBID=5012  LSB_MCPU_HOSTS="hostA 4 hostB 4"  LSB_HOSTS="hostA hostA ... hostB"
# LSB_DJOB_HOSTFILE=/home/me/.lsbatch/1700000000.5012.hostfile, with a line per slot. Very long lists are in the file
# only.
def lsf(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation in LSF's variables or its host file, or None if they have none.

    Raises:
        UsageError: the list of hosts cannot be read or understood.
    """
    if not environ.get("LSB_JOBID"):
        return None
    if file := environ.get("LSB_DJOB_HOSTFILE"):
        hosts = [Host(line.split()[0], 1) for line in read_lines("LSB_DJOB_HOSTFILE", file, "LSF")]
    elif text := environ.get("LSB_MCPU_HOSTS"):
        words = text.split()
        slots = [number for word in words[1::2] if (number := whole_number(word))]
        if len(words) != 2 * len(slots):
            raise UsageError(
                f"LSB_MCPU_HOSTS={text!r} is not a list of hosts and slots like 'a 4 b 4': {remedy('LSF')}"
            )
        hosts = [Host(name, number) for name, number in zip(words[::2], slots, strict=True)]
    else:
        hosts = [Host(name, 1) for name in environ.get("LSB_HOSTS", "").split()]
    return Allocation("LSF", tuple(merge(hosts)), environ["LSB_JOBID"]) if hosts else None


# qsub -pe mpi 20:  JOB_ID=1234  NSLOTS=20  NHOSTS=2
# PE_HOSTFILE=/opt/sge/default/spool/n12/active_jobs/1234.1/pe_hostfile, with lines like these:
#   n12.cluster 16 all.q@n12.cluster UNDEFINED
#   n13.cluster 4 short.q@n13.cluster UNDEFINED          host, slots, queue, processors
def grid_engine(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation in the host file of the parallel environment, or None outside of one.

    Raises:
        UsageError: the file cannot be read or understood.
    """
    if not (file := environ.get("PE_HOSTFILE")):
        return None
    hosts = []
    for line in read_lines("PE_HOSTFILE", file, "Grid Engine"):
        name, text, *_ = [*line.split(), ""]
        slots = whole_number(text)
        if slots is None:
            raise UsageError(
                f"PE_HOSTFILE={file!r} has the line {line!r}, which is no host and number of slots: "
                f"{remedy('Grid Engine')}"
            )
        hosts.append(Host(name, slots))
    return Allocation("Grid Engine", tuple(merge(hosts)), environ.get("JOB_ID", ""))
