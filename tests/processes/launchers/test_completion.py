"""Completion of command lines: the words, in a real bash, and where Debian's zsh and fish are, in these."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys

import pytest
from machines.system_packages import why_missing
from running_distrun import DEADLINE

from distrun.tools.completion.candidates import candidates

pytestmark = pytest.mark.gate


@pytest.fixture
def home(tmp_path):
    """Return a home with hosts, a settings file and a program `distrun`."""
    (tmp_path / ".ssh" / "more").mkdir(parents=True)
    (tmp_path / ".ssh" / "config").write_text("Include more/*\nHost alpha *.cluster\n  User me\nhost = beta\n")
    (tmp_path / ".ssh" / "more" / "own").write_text("Host gamma !delta # a comment\n")
    known = "epsilon,10.0.0.5 ssh-ed25519 A\n[zeta]:2222 ssh-rsa B\n|1|x|y ssh-rsa C\n@revoked eta ssh-rsa D\n"
    (tmp_path / ".ssh" / "known_hosts").write_text(known)
    (tmp_path / "distrun.toml").write_text("[profiles.cluster]\nnp = 4\n[profiles.laptop]\n")
    program = tmp_path / "distrun"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m distrun.runner \"$@\"\n")
    program.chmod(0o755)
    return tmp_path


@pytest.fixture
def environ(home, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return os.environ | {"HOME": str(home), "PATH": f"{home}:{os.environ['PATH']}", "TERM": "xterm"}


@pytest.fixture
def run(home, environ):
    """Return a function that runs a command in that home and returns its lines."""

    def lines(*command):
        done = subprocess.run(command, env=environ, cwd=home, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.split("\n")[:-1]

    return lines


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("do",), ["doctor"]),
        (("-np", "2", "--stall"), ["--stall-timeout", "--stall-warning"]),
        (("--auto", "-np", "2", "--stall-t"), ["--stall-timeout"]),
        (("--auto=s",), ["--auto=scale"]),
        (("--launcher", "s"), ["srun", "ssh"]),
        (("-H", ""), ["10.0.0.5", "alpha", "beta", "epsilon", "gamma", "localhost"]),
        (("-H", "alpha:4,be"), ["alpha:4,beta"]),
        (("--profile", ""), ["cluster", "laptop", "none"]),
        (("doctor", "--js"), ["--json"]),
        (("help", "el"), ["elastic"]),
        (("completion", ""), ["bash", "fish", "zsh"]),
        (("--hostfile", ""), []),
        (("-np", "2", "python", "--l"), []),
    ],
)
def test_words_are_commands_options_values_hosts_and_profiles(home, monkeypatch, words, expected):
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    assert [*candidates(words)] == expected


def test_options_have_their_meanings():
    assert candidates(["--stall-t"]) == {"--stall-timeout": "Fail an operation that has waited for S seconds; 0: never"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("distrun do", ["doctor"]),
        ("distrun -np 2 -H alpha:4,be", ["4,beta"]),
        ("distrun --auto=s", ["scale"]),
        ("distrun -np 2 python --l", [""]),
    ],
)
def test_bash_completes(home, run, line, expected):
    (said,) = run(str(home / "distrun"), "completion", "bash", "--install")
    script = home / ".local/share/bash-completion/completions/distrun"
    assert said.startswith(f"{script} is written")
    code = """source "$1"; COMP_LINE=$2 COMP_POINT=${#2}; _distrun; printf '%s\\n' "${COMPREPLY[@]}" """
    assert run("bash", "-c", code, "-", str(script), line) == expected


def test_zsh_is_told_once_and_keeps_its_settings(home, run):
    (home / ".zshrc").write_text("setopt autocd")
    for _ in range(2):
        run(str(home / "distrun"), "completion", "zsh", "--install")
    assert (home / ".zshrc").read_text() == f"setopt autocd\nsource {home}/.local/share/distrun/completion.zsh\n"


def test_a_place_that_cannot_be_written_costs_one_sentence(home, environ):
    environ |= {"XDG_DATA_HOME": "/dev/null"}
    command = [str(home / "distrun"), "completion", "zsh", "--install"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be written: Not a directory" in done.stderr


@pytest.mark.lab
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("distrun doc", b"doctor"),
        ("distrun -np 2 -H alpha:4,be", b"alpha:4,beta"),
        ("distrun --auto=s", b"--auto=scale"),
        ("distrun --hostfile distrun.t", b"distrun.toml"),
    ],
)
def test_zsh_completes(home, run, environ, line, expected):
    if reason := why_missing({"zsh": "zsh"}):
        pytest.skip(reason)
    run(str(home / "distrun"), "completion", "zsh", "--install")
    master, slave = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-i"], env=environ, cwd=home, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    with os.fdopen(master, "rb+", buffering=0) as terminal:
        try:
            terminal.write(f"{line}\t".encode())
            seen = b""
            while expected not in seen:
                assert select.select([terminal], [], [], DEADLINE)[0], seen
                seen += terminal.read(4096)
        finally:
            shell.kill()
            shell.wait()


@pytest.mark.lab
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("distrun doc", ["doctor"]),
        ("distrun -np 2 --stall-t", ["--stall-timeout\tFail an operation that has waited for S seconds; 0: never"]),
        ("distrun -np 2 -H alpha:4,be", ["alpha:4,beta"]),
        ("distrun --auto=s", ["--auto=scale"]),
        ("distrun --hostfile distrun.t", ["distrun.toml"]),
    ],
)
def test_fish_completes(home, run, line, expected):
    if reason := why_missing({"fish": "fish"}):
        pytest.skip(reason)
    run(str(home / "distrun"), "completion", "fish", "--install")
    assert run("fish", "-c", f"complete -C '{line}'") == expected
