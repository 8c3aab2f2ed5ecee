"""Errors of GPUs in the kernel's log."""

from distrun.tools.doctor.gpu_checks import xids
from distrun.tools.doctor.gpu_checks.xids import Xid

LOG = """\
6,1201,8612345,-;nvidia 0000:3b:00.0: enabling device (0140 -> 0142)
5,1303,90123456,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE
5,1304,90123999,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=4712, name=python, Ch 00000009, intr 00000000. MMU Fault: ENGINE
 SUBSYSTEM=pci
4,1390,91123999,-;NVRM: Xid (PCI:0000:CA:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
4,1391,91124000,-;NVRM: GPU 0000:ca:00.0: GPU has fallen off the bus.
"""
FOUND = [
    Xid("0000:3b:00", 31, 2, "pid=4712, name=python, Ch 00000009, intr 00000000. MMU Fault: ENGINE"),
    Xid("0000:ca:00", 79, 1, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
]


def test_errors_are_counted_by_gpu_and_number():
    assert xids.parse(LOG) == FOUND
    assert xids.parse("[  88.1] NVRM: Xid (0000:01:00): 79\n") == [Xid("0000:01:00", 79, 1, "")]


def test_the_log_is_read_to_its_end(tmp_path):
    log = tmp_path / "kmsg"
    log.write_text(LOG)
    assert xids.read(str(log)) == (FOUND, "")
