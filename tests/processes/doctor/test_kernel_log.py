"""The programs that show the kernel's log, played by scripts, where the doctor may not read it itself."""

from __future__ import annotations

import pytest

from distrun.tools.doctor.gpu_checks import xids

pytestmark = pytest.mark.gate


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho '[   88.123456] NVRM: Xid (PCI:0000:3b:00): 48, pid=7, DBE'\n", ""),
        (
            "#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1\n",
            "kmsg: No such file",
        ),
        ("#!/bin/sh\n", "kmsg: No such file"),
    ],
    ids=["dmesg may", "dmesg may not", "an empty log is none"],
)
def test_where_the_device_is_refused_programs_are_asked(script, reason, tmp_path, monkeypatch):
    (tmp_path / "dmesg").write_text(script)
    (tmp_path / "dmesg").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(xids, "_PROGRAMS", (("dmesg",), ("no-such-journalctl",)))
    found, refusal = xids.read(str(tmp_path / "kmsg"))
    assert found == ([] if reason else [xids.Xid("0000:3b:00", 48, 1, "pid=7, DBE")])
    assert reason in refusal
    assert bool(reason) is bool(refusal)
