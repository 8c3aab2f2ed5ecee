"""The job key by munge. A real munged is asked in tests/slurm; here its tools are played by scripts."""

from __future__ import annotations

import os

import pytest

from distrun.errors import BootstrapError
from distrun.host import munge

pytestmark = pytest.mark.gate

KEY = "ab" * 32
OPENED = f"STATUS:  0\nUID:   {os.getuid()}\n\n{KEY}"


def test_a_key_is_sealed_for_our_user_only_and_is_on_no_command_line(tools, tmp_path):
    tools(munge=f'echo "$@" >{tmp_path}/arguments; echo "MUNGE:$(cat):"')
    credential, key = munge.new_key()
    assert credential == b"MUNGE:" + key.hex().encode() + b":"
    assert len(key) == 32
    assert munge.new_key()[1] != key
    assert (tmp_path / "arguments").read_text() == f"--restrict-uid={os.getuid()} --ttl=-1\n"


@pytest.mark.parametrize("status", [0, 17], ids=["opened first", "opened before"])
def test_the_key_is_found_in_a_credential(tools, status):
    tools(unmunge=f"test \"$(cat)\" = MUNGE:x: && printf '{OPENED}'; exit {status}")
    assert munge.key_of(b"MUNGE:x:") == bytes.fromhex(KEY)


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (f"printf 'STATUS: 0\\nUID: {os.getuid() + 1}\\n\\n{KEY}'", "user id .* answers in rank 0's place"),
        (f"printf '{OPENED}'; exit 15", r"cannot be opened \(status 15"),
        ("printf 'STATUS: 18\\n\\n'; exit 18", r"cannot be opened \(status 18"),
        (f"printf 'STATUS: 0\\nUID: {os.getuid()}\\n\\nhello'", "holds no key"),
        (f"printf 'STATUS: 0\\nUID: {os.getuid()}\\n\\n'", "holds no key"),
        ("echo 'unmunge: Error: Failed to access' >&2; exit 6", "'unmunge: Error: Failed to access'"),
    ],
    ids=["another user", "expired", "not for us", "no key", "nothing", "no daemon"],
)
def test_a_credential_that_is_not_to_be_trusted_is_refused(tools, script, complaint):
    tools(unmunge=f"cat >/dev/null; {script}")
    with pytest.raises(BootstrapError, match=complaint):
        munge.key_of(b"anything")


def test_what_is_missing_is_told(tools, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert not munge.is_here()
    with pytest.raises(BootstrapError, match="munge cannot be used: No such file"):
        munge.new_key()
    tools(munge="", unmunge="")
    assert munge.is_here()
