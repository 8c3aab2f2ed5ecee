"""Hosts that cannot be used: one message that names them all, each with the reason and the remedy; exit status 2."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import threading

import pytest
from machines.namespaces import make_key


def complaint(job):
    """Return the message to the user when no rank was started."""
    assert job.wait() == 2, job.stderr.data
    text = job.stderr.data.decode()
    assert "Traceback" not in text
    assert job.stdout.data == b""
    return text


def run_remedy(text, home):
    """Execute the commands between `: ` and the end of the sentence, as the user would."""
    command = text.partition("if that is the right one: ")[2] or text.partition("if you know why it changed: ")[2]
    command = command.partition("; or give")[0].strip()
    environ = {**os.environ, "HOME": str(home.directory)}
    subprocess.run(["sh", "-c", command], env=environ, check=True, capture_output=True)


@pytest.mark.gate
def test_an_unknown_key_is_refused_until_the_command_given_has_been_run(distrun, home, beta):
    home.known_hosts.write_text("")
    job = distrun("-H", "beta:1", "true")
    text = complaint(job)
    assert "host beta cannot be used" in text
    assert f"ssh-keyscan -p 2222 {beta.address} >> {shlex.quote(str(home.known_hosts))}" in text
    assert "--ssh-accept-new" in text
    run_remedy(text, home)
    distrun("-H", "beta:1", "true").ended(0)


def test_an_unknown_key_is_accepted_once_with_ssh_accept_new(distrun, home, alpha):
    home.known_hosts.unlink()
    distrun("-H", "alpha:1", "--ssh-accept-new", "true").ended(0)
    assert home.known_hosts.read_text() == alpha.known()
    assert home.known_hosts.stat().st_mode & 0o777 == 0o600
    distrun("-H", "alpha:1", "true").ended(0)


@pytest.mark.gate
def test_a_changed_key_is_refused_until_the_commands_given_have_been_run(distrun, home, alpha, tmp_path):
    other = " ".join(make_key(tmp_path / "other").read_text().split()[:2])
    home.known_hosts.write_text(f"# hosts\n{alpha.address} {other}\n")
    text = complaint(distrun("-H", "alpha:1", "--ssh-accept-new", "true"))
    assert "host alpha cannot be used" in text
    assert "has changed" in text
    assert "known_hosts, line 2" in text
    run_remedy(text, home)
    distrun("-H", "alpha:1", "true").ended(0)


@pytest.mark.gate
def test_a_refused_login_tells_which_keys_were_tried(distrun, home, alpha, tmp_path):
    make_key(tmp_path / "stranger")
    home.config.write_text(f"Host alpha\n  HostName {alpha.address}\n  User root\n")
    text = complaint(distrun("-H", "alpha:1", "-i", str(tmp_path / "stranger"), "true"))
    assert "root may not log in there" in text
    assert str(tmp_path / "stranger") in text
    assert "it offers publickey" in text
    assert "ssh-copy-id root@alpha" in text
    home.config.write_text(home.config.read_text() + "  IdentityFile /no/such/key\n")
    assert "/no/such/key (does not exist)" in complaint(distrun("-H", "alpha:1", "true"))


def test_an_encrypted_key_is_named(distrun, home, alpha, tmp_path):
    home.config.write_text(f"Host alpha\n  HostName {alpha.address}\n")
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(key)], check=True)
    text = complaint(distrun("-H", "alpha:1", "-i", str(key), "true"))
    assert f"{key} (is encrypted: ssh-add it)" in text


@pytest.mark.gate
def test_all_hosts_that_cannot_be_used_are_named_at_once(distrun, network, home, alpha):
    hosts = f"alpha:1,no-such-host.invalid:1,{network.nobody}:1,{network.address}x:1,[fd00:231::99]:1"
    refused = f"Host closed\n  HostName {alpha.address}\n  Port 9\n"
    silent = f"Host {network.nobody} fd00:*\n  ConnectTimeout 1\n"
    home.config.write_text(refused + silent + home.config.read_text())
    job = distrun("-H", hosts + ",closed:1", "true")
    text = complaint(job)
    assert "5 hosts cannot be used" in text
    assert "no-such-host.invalid: the name 'no-such-host.invalid' is not found" in text
    assert f"closed: the connection to {alpha.address} port 9 was refused" in text
    assert f"    {network.nobody}: " in text
    assert "    alpha: " not in text


def test_the_command_to_try_has_the_flags_of_this_launch(distrun, home, tmp_path):
    """A server that is no sshd closes the connection at once."""
    key = tmp_path / "key"
    key.touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        port = str(server.getsockname()[1])
        home.config.write_text("Host bare\n  HostName 127.0.0.1\n  User me\n")
        text = complaint(distrun("-H", "bare:1", "-p", port, "-i", str(key), "true"))
    assert f"try 'ssh -p {port} -i {key} me@bare'" in text


def test_a_host_that_drops_packets_is_given_up_in_time(distrun, alpha):
    with alpha.cut_off():
        # Beta's agent has to start within that time.
        job = distrun("-H", "alpha:1,beta:1", "--start-timeout", "8", "true")
        text = complaint(job)
    assert "host alpha cannot be used" in text
    late = f"connecting to {alpha.address} port 22 took longer than the 8 s of --start-timeout: allow more"
    assert late in text or f"{alpha.address} port 22 did not answer within 8 s" in text  # who looks first varies
    assert "beta" not in text


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, ["host alpha cannot be used", "Python '{python}' cannot be started", "--python"]),
        (
            f'exec {sys.executable} -c "import sys; sys.version_info = (3, 9); exec(sys.argv[1])" "$2"',
            ["distrun needs Python 3.10 or newer"],
        ),
        pytest.param(
            "echo \"ModuleNotFoundError: No module named 'distrun'\" >&2; exit 1",
            ["distrun is not installed for {python}", "run there '{python} -m pip install "],
            marks=pytest.mark.gate,
        ),
        (f'PYTHONPATH=$(dirname "$0") exec {sys.executable} "$@"', ["distrun 0.0.7 is installed there and 0."]),
    ],
    ids=["missing", "too old", "without distrun", "with another distrun"],
)
def test_a_python_that_will_not_do_is_named(distrun, tmp_path, script, words):
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(0, {os.path.dirname(os.path.dirname(os.path.dirname(__file__)))!r})\n"
        "import distrun; distrun.__version__ = '0.0.7'\n"
    )
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    text = complaint(distrun("-H", "alpha:1", "--python", str(python), "true"))
    assert [word for word in words if word.format(python=python) not in text] == []
    assert "install distrun==" not in text  # on an index, that name may be anybody's


def test_a_missing_directory_is_named(distrun):
    text = complaint(distrun("-H", "alpha:1", "--wdir", "/no/such/place", "true"))
    assert "the working directory '/no/such/place' does not exist there" in text


@pytest.mark.gate
def test_a_host_under_two_names_is_refused_with_both(distrun, home, alpha):
    home.config.write_text(f"Host twin\n  HostName {alpha.address}\n" + home.config.read_text())
    text = complaint(distrun("-H", "alpha:1,beta:1,twin:2", "true"))
    assert "hosts 'alpha' and 'twin' are one machine" in text
    assert "list it once, as in alpha:3" in text


def test_an_unreachable_jump_host_is_named(distrun, home, network):
    jump = f"Host alpha beta\n  ProxyJump bastion\nHost bastion\n  HostName {network.nobody}\n  ConnectTimeout 1\n"
    home.config.write_text(jump + home.config.read_text())
    text = complaint(distrun("-H", "alpha:1,beta:1", "true"))
    assert text.count(f": its jump host bastion ({network.nobody}): ") == 2


def test_a_jump_host_that_cannot_go_on_is_named(distrun, home):
    jump = "Host inner\n  HostName 127.0.0.1\n  Port 9\n  ProxyJump alpha\n"
    home.config.write_text(jump + home.config.read_text())
    text = complaint(distrun("-H", "inner:1", "true"))
    assert "the jump host alpha" in text
    assert "cannot connect to 127.0.0.1 port 9" in text


def test_ctrl_c_while_connecting_ends_at_once(distrun, alpha):
    with alpha.cut_off():
        job = distrun("-H", "alpha:1,beta:1", "-v", "--ssh-option", "ConnectTimeout=60", "true")
        job.stderr.wait_for(b"agent on beta started")
        job.process.terminate()
        assert job.wait() == 143  # half a minute before it would give up connecting


def test_a_command_that_does_not_exist_there_ends_with_127(distrun):
    said = distrun("-H", "alpha:1", "no-such-command").ended(127)
    assert b"rank 0 on alpha could not be started" in said
