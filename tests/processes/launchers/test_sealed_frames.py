"""Frames to agents that srun starts are sealed; munge, played by scripts here, vouches for the public keys."""

from __future__ import annotations

import dataclasses
import os
import sys

import pytest
from session.tiers import one_in_gate

from distrun.errors import BootstrapError
from distrun.runner.protocol import sealed_frames
from distrun.runner.protocol.handshake import Greeting, HostError, HostInfo
from distrun.runner.protocol.sealed_frames import SealOffer, answered

pytestmark = pytest.mark.gate

SLURM = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}
# It keeps what the agent is sent, and starts it here.
SRUN = """
case "$*" in *--jobid*) ;; *) exit 1 ;; esac
while [ "${{1#--}}" != "$1" ]; do shift; done
tee {directory}/heard.$$ | "$@"
"""
# It passes the greeting on, and then says something of its own.
SPEAKER = """
import os, subprocess, sys
agent = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
os.write(agent.stdin.fileno(), os.read(0, 1 << 20))
os.read(0, 1 << 20)
os.write(agent.stdin.fileno(), bytes([3]) + b"\\xff\\xff\\xff\\xff" + bytes([0, 0, 0, 1]) + b"9")
sys.exit(agent.wait())
"""
UNMUNGE = f"printf 'STATUS:  0\\nUID:   {os.getuid()}\\n\\n'; cat"
MUNGE = {False: {"munge": "exit 1", "unmunge": "exit 1"}, True: {"munge": "cat", "unmunge": UNMUNGE}}


def agree(offer: SealOffer, change=lambda info: info):
    greeting = Greeting(0.0, "/", sealing=offer.public, credential=offer.credential)
    public, credential, opener = answered(greeting)
    info = change(HostInfo("", "", 1, sealing=public, credential=credential))
    return offer.accepted(info), opener


@pytest.mark.parametrize("has_munge", [False, True])
def test_both_sides_agree_with_and_without_munge(tools, has_munge):
    tools(**MUNGE[has_munge])
    offer = SealOffer()
    assert bool(offer.credential) == has_munge
    for _ in range(2):  # any number of agents
        seal, opener = agree(offer)
        assert opener.open(seal.seal(b"a frame")) == b"a frame"


def test_a_public_key_that_munge_does_not_vouch_for_is_refused(tools):
    tools(**MUNGE[True])
    offer = SealOffer()
    other = SealOffer().public
    with pytest.raises(HostError, match="about another launch"):
        agree(offer, lambda info: dataclasses.replace(info, sealing=other))
    with pytest.raises(HostError, match="about another launch"):
        agree(offer, lambda info: dataclasses.replace(info, credential=""))
    with pytest.raises(BootstrapError, match="about another launch"):
        answered(Greeting(0.0, "/", sealing=other, credential=offer.credential))
    tools(unmunge="cat >/dev/null; exit 15")
    with pytest.raises(BootstrapError, match="unmunge failed"):
        agree(offer)


def test_frames_travel_as_they_are_where_one_side_cannot_seal(tools, monkeypatch):
    tools(**MUNGE[False])
    offer = SealOffer()
    monkeypatch.setattr(sealed_frames, "_key_pair", lambda: None)
    assert agree(offer) == (None, None)
    assert SealOffer().public == ""
    assert agree(SealOffer()) == (None, None)


@pytest.mark.parametrize("has_munge", one_in_gate(False, True, chosen=1))
def test_the_job_key_does_not_pass_through_srun(output, python, tools, tmp_path, has_munge):
    (tmp_path / "heard").mkdir()
    tools(srun=SRUN.format(directory=tmp_path / "heard"), **MUNGE[has_munge])
    code = "import os; print('key', os.environ['DISTRUN_KEY'], os.environ['TOLD'], flush=True)"
    printed = output("-x", "TOLD=a-word", *python(code), **SLURM)
    keys = {line.split()[2] for line in printed.splitlines()}
    assert len(keys) == 1
    assert len(keys.pop()) == 64
    heard = [file.read_bytes() for file in (tmp_path / "heard").iterdir()]
    assert len(heard) == 2
    for words in heard:
        assert b"sealing" in words
        assert not any(line.split()[2] in words for line in printed.splitlines())
        assert b"a-word" not in words


def test_an_agent_gives_up_a_line_on_which_somebody_else_speaks(distrun, tools, tmp_path, python):
    speaker = tmp_path / "speaker.py"
    speaker.write_text(SPEAKER)
    script = SRUN.format(directory=tmp_path).partition("tee ")[0]
    script += f'exec {sys.executable} {speaker} "$@"'
    tools(srun=script, **MUNGE[False])
    job = distrun(*python("print('started')"), **SLURM)
    assert job.wait() != 0
    assert b"started" not in job.stdout.data
