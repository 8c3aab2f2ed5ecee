"""Jobs of Grid Engine (SGE, Son of Grid Engine, Univa, Altair) in a parallel environment."""

from __future__ import annotations

from collections.abc import Mapping

from distrun.errors import UsageError
from distrun.host.numerals import whole_number
from distrun.runner.planning.allocation.allocated import Allocation, read_lines, remedy
from distrun.runner.planning.hosts import Host, merge

# qsub -pe mpi 20:  JOB_ID=1234  NSLOTS=20  NHOSTS=2
# PE_HOSTFILE=/opt/sge/default/spool/n12/active_jobs/1234.1/pe_hostfile, with lines like these:
#   n12.cluster 16 all.q@n12.cluster UNDEFINED
#   n13.cluster 4 short.q@n13.cluster UNDEFINED          host, slots, queue, processors
_FILE = "PE_HOSTFILE"
_JOB = "JOB_ID"
_NAME = "Grid Engine"


def read(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation in the host file of the parallel environment, or None outside of one.

    Raises:
        UsageError: the file cannot be read or understood.
    """
    if not (file := environ.get(_FILE)):
        return None
    hosts = []
    for line in read_lines(_FILE, file, _NAME):
        name, text, *_ = [*line.split(), ""]
        slots = whole_number(text)
        if slots is None:
            raise UsageError(
                f"{_FILE}={file!r} has the line {line!r}, which is no host and number of slots: {remedy(_NAME)}"
            )
        hosts.append(Host(name, slots))
    return Allocation(_NAME, tuple(merge(hosts)), environ.get(_JOB, ""))
