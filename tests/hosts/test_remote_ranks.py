"""Ranks on other hosts: where they run, what they are given, and what comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SHOW = (
    "import json, os, socket, sys; print(json.dumps([dict(os.environ), socket.gethostname(), os.getcwd(), sys.path]))"
)


def shown(printed):
    """Return the outputs of ranks that execute SHOW, in rank order."""
    return sorted(map(json.loads, printed.splitlines()), key=lambda item: int(item[0]["RANK"]))


@pytest.mark.gate
def test_two_hosts_with_two_ranks_each(output, python, alpha):
    ranks = shown(output("-H", "alpha:2,beta:2", "--no-tag-output", *python(SHOW)))
    places = [
        (host, *(environ[name] for name in ("RANK", "LOCAL_RANK", "DISTRUN_CROSS_RANK", "DISTRUN_CROSS_SIZE")))
        for environ, host, _, _ in ranks
    ]
    assert places == [
        ("alpha", "0", "0", "0", "2"),
        ("alpha", "1", "1", "0", "2"),
        ("beta", "2", "0", "1", "2"),
        ("beta", "3", "1", "1", "2"),
    ]
    environs = [environ for environ, *_ in ranks]
    assert {environ["MASTER_ADDR"] for environ in environs} == {alpha.address}
    assert len({environ["MASTER_PORT"] for environ in environs}) == 1
    assert len({environ["DISTRUN_KEY"] for environ in environs}) == 1


def test_this_machine_and_another(output, python, network):
    ranks = shown(output("-H", "localhost:1,alpha:2", "--no-tag-output", *python(SHOW)))
    assert [item[1] for item in ranks] == [os.uname().nodename, "alpha", "alpha"]
    assert {item[0]["MASTER_ADDR"] for item in ranks} == {network.address}


@pytest.mark.gate
def test_a_remote_rank_has_the_logins_environment_and_what_it_was_promised(output, python):
    printed = output(
        *("-H", "alpha:1", "-x", "A=a 'b' $c\udcff", "-x", "TAK*", "--no-tag-output", *python(SHOW)),
        TAKEN="1",
        LEFT="2",
        DISTRUN_FUSION_THRESHOLD="3",
    )
    ((environ, _, directory, _),) = shown(printed)
    assert environ["A"] == "a 'b' $c\udcff"
    assert environ["TAKEN"] == "1"
    assert environ["DISTRUN_FUSION_THRESHOLD"] == "3"
    assert "LEFT" not in environ
    assert environ["OMP_NUM_THREADS"].isdecimal()
    assert environ["PATH"].split(":")[0] == os.path.dirname(sys.executable)
    assert directory == os.getcwd()
    if "PYTHONPATH" in os.environ:
        assert os.environ["PYTHONPATH"].split(":")[0] == environ["PYTHONPATH"].split(":")[0]


def test_in_horovods_mode_a_remote_rank_finds_its_package_and_its_variables(output, python):
    code = "import os, horovod; print(horovod.__version__, *map(os.getenv, ('HOROVOD_RANK', 'HOROVOD_LOG_LEVEL')))"
    printed = output("--horovod", "-H", "alpha:1,beta:1", "--no-tag-output", *python(code), HOROVOD_LOG_LEVEL="error")
    lines = sorted(printed.decode().splitlines())
    assert lines == ["0.28.1+distrun 0 error", "0.28.1+distrun 1 error"]


def test_the_working_directory_is_given(output, tmp_path):
    assert output("-H", "alpha:1", "--wdir", str(tmp_path), "--no-tag-output", "pwd").decode().strip() == str(tmp_path)


def test_gpus_of_a_host_are_listed_for_its_ranks(output):
    printed = output("-H", "alpha:[0,2],beta:1", "--no-tag-output", "sh", "-c", "echo $RANK=$CUDA_VISIBLE_DEVICES.")
    assert sorted(printed.split()) == [b"0=0,2.", b"1=0,2.", b"2=."]


def test_an_address_of_ipv6_is_a_host(output, home, alpha):
    home.known_hosts.write_text(f"{alpha.address6} {alpha.public_key()}\n")
    assert output("-H", f"[{alpha.address6}]:2", "--no-tag-output", "uname", "-n") == b"alpha\nalpha\n"


def test_flags_replace_the_configuration(output, home, network, beta):
    home.config.unlink()
    flags = ("-p", str(beta.port), "-i", str(network.user_key), "--ssh-option", f"HostKeyAlias={beta.name}")
    home.known_hosts.write_text(f"other ssh-rsa AAAA\n{beta.name} {beta.public_key()}\n")
    assert output("-H", f"root@{beta.address}:1", *flags, "--no-tag-output", "uname", "-n") == b"beta\n"


@pytest.mark.gate
def test_a_host_behind_another(output, home, alpha):
    home.config.write_text(home.config.read_text().replace("Host beta\n", "Host beta\n  ProxyJump alpha\n"))
    printed = output("-H", "beta:2", "--no-tag-output", "sh", "-c", "uname -n; echo $SSH_CONNECTION")
    assert printed.count(b"beta\n") == 2
    assert printed.count(alpha.address.encode() + b" ") == 2


@pytest.mark.gate
def test_a_proxy_command_leads_to_a_host(output, home):
    relay = "import os, socket, sys, threading\n"
    relay += "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
    relay += "def pump(read, write, n):\n while d := read(n): write(d)\n os._exit(0)\n"
    relay += "threading.Thread(target=pump, args=(lambda n: os.read(0, n), s.sendall, 65536)).start()\n"
    relay += "pump(s.recv, lambda d: os.write(1, d), 65536)\n"
    script = home.directory / "relay.py"
    script.write_text(relay)
    home.config.write_text(f"Host beta\n  ProxyCommand {sys.executable} {script} %h %p\n" + home.config.read_text())
    assert output("-H", "beta:1", "--no-tag-output", "uname", "-n") == b"beta\n"


@pytest.mark.gate
def test_the_keys_of_an_ssh_agent_are_offered(distrun, home, network):
    home.config.write_text(home.config.read_text().replace("IdentitiesOnly yes", "").replace("IdentityFile", "#"))
    sock = str(home.directory / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL)
    try:
        environ = {**os.environ, "SSH_AUTH_SOCK": sock}
        while subprocess.run(["ssh-add", "-q", str(network.user_key)], env=environ, check=False).returncode:
            assert agent.poll() is None
        distrun("-H", "alpha:1", "--no-tag-output", "uname", "-n", SSH_AUTH_SOCK=sock).ended(0)
    finally:
        agent.kill()
        agent.wait()


def test_what_a_login_prints_does_no_harm(output, python, tmp_path):
    noisy = tmp_path / "python"
    noisy.write_text(f'#!/bin/sh\necho welcome\necho beware >&2\nexec {sys.executable} "$@"\n')
    noisy.chmod(0o755)
    assert output("-H", "alpha:1", "--python", str(noisy), "--no-tag-output", "uname", "-n") == b"alpha\n"


@pytest.mark.gate
def test_standard_input_and_much_output_cross_the_connection(distrun, python):
    code = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data * 8)"
    job = distrun("-H", "alpha:1,beta:1", "--stdin", "1", "--no-tag-output", *python(code), stdin=subprocess.PIPE)
    data = bytes(range(256)).replace(b"\r", b"").replace(b"\n", b"") * 4000 + b"\n"
    job.process.stdin.write(data)
    job.process.stdin.close()
    assert job.wait() == 0, job.stderr.data
    assert job.stdout.data == data * 8


def test_a_dry_run_shows_where_hosts_are_and_connects_to_none(output, alpha):
    assert f"host alpha ({alpha.address}): 1 rank".encode() in output("-H", "alpha:1,beta:1", "--dry-run", "true")
    assert alpha.processes() == []


@pytest.mark.gate
def test_a_function_returns_results_from_other_hosts(distrun, home):
    code = """
import socket
from distrun import run
print(run(lambda: socket.gethostname(), np=None, hosts="alpha:1,beta:2"))
"""
    environ = {**os.environ, "HOME": str(home.directory), "SSH_AUTH_SOCK": ""}
    shown = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environ, check=True).stdout
    assert shown == b"['alpha', 'beta', 'beta']\n"


@pytest.mark.gate
def test_no_secret_is_on_a_remote_command_line(distrun, python, alpha):
    code = "import os, signal; print(os.environ['DISTRUN_KEY'], flush=True); signal.pause()"
    job = distrun("-H", "alpha:1", "-x", "TOKEN=hush-hush", *python(code))
    key = job.stdout.wait_for(b"\n").split()[1].decode()
    processes = alpha.processes()
    assert len(processes) == 3  # the agent, its guard and the rank
    for process in processes:
        assert key not in " ".join(process.cmdline())
        assert "hush-hush" not in " ".join(process.cmdline())
    assert "DISTRUN_KEY" not in alpha.agent().environ()
    job.process.terminate()
    assert job.wait() == 143
