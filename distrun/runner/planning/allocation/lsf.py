"""Jobs of IBM Spectrum LSF."""

from __future__ import annotations

from collections.abc import Mapping

from distrun.errors import UsageError
from distrun.host.numerals import whole_number
from distrun.runner.planning.allocation.allocated import Allocation, read_lines, remedy
from distrun.runner.planning.hosts import Host, merge

# bsub -n 8 -R span[ptile=4]:  LSB_JOBID=5012  LSB_MCPU_HOSTS="hostA 4 hostB 4"  LSB_HOSTS="hostA hostA ... hostB"
# LSB_DJOB_HOSTFILE=/home/me/.lsbatch/1700000000.5012.hostfile, with a line per slot. Very long lists are in the file
# only.
_JOB = "LSB_JOBID"
_FILE = "LSB_DJOB_HOSTFILE"
_PAIRS = "LSB_MCPU_HOSTS"
_NAMES = "LSB_HOSTS"


def read(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation in LSF's variables or its host file, or None if they have none.

    Raises:
        UsageError: the list of hosts cannot be read or understood.
    """
    if not environ.get(_JOB):
        return None
    if file := environ.get(_FILE):
        hosts = [Host(line.split()[0], 1) for line in read_lines(_FILE, file, "LSF")]
    elif text := environ.get(_PAIRS):
        words = text.split()
        slots = [number for word in words[1::2] if (number := whole_number(word))]
        if len(words) != 2 * len(slots):
            raise UsageError(f"{_PAIRS}={text!r} is not a list of hosts and slots like 'a 4 b 4': {remedy('LSF')}")
        hosts = [Host(name, number) for name, number in zip(words[::2], slots, strict=True)]
    else:
        hosts = [Host(name, 1) for name in environ.get(_NAMES, "").split()]
    return Allocation("LSF", tuple(merge(hosts)), environ[_JOB]) if hosts else None
