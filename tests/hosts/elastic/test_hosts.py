"""Elastic jobs on several hosts: what fails or leaves is made good, and nothing is left on any host."""

from __future__ import annotations

import shlex
import signal
import sys

import pytest
from elastic_training import Training, done, kill
from shell import lives, wait_until


@pytest.fixture
def training(distrun, tmp_path):
    return lambda *arguments, **more: Training(distrun, tmp_path, *arguments, **more)


# Hosts train by themselves, and look together every 8 steps whether it is time to end.
DILOCO = """
import os, time, torch
import distrun.torch as dt

torch.manual_seed(0)
model = torch.nn.Linear(300, 300)
inner = torch.optim.SGD(model.parameters(), 0.01)
dt.init()
optimizer = dt.DiLoCo(inner, model.named_parameters(), every=8, fragments=2)

@dt.elastic.run
def train(state):
    place = [os.environ["DISTRUN_" + name] for name in ("GENERATION", "RANK", "SIZE", "SLOT")]
    print("at", *place, os.getpid(), state.step, flush=True)
    while state.step % 8 or not any(dt.allgather_object(os.path.exists(os.environ["END"]))):
        optimizer.zero_grad()
        model(torch.randn(4, 300)).square().mean().backward()
        optimizer.step()
        if state.step % 8 == 4:
            print("exchanging", optimizer._outer.under_way is not None, flush=True)
        state.step += 1
        state.advance()
        time.sleep(0.01)
    optimizer.merge()

state = dt.elastic.TorchState(model, optimizer, step=0)
train(state)
print("done", dt.rank(), state.step, flush=True)
assert len(set(dt.allgather_object(float(model.weight.sum())))) == 1
"""


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.gate)])
def test_a_rank_on_another_host_is_replaced(training, victim):
    trained = training("--elastic", "-H", "alpha:2,beta:1")
    before = trained.wait_for_ranks(3)
    kill(before[victim])
    after = trained.wait_for_ranks(3)
    assert len(set(before.values()) & set(after.values())) == 2
    assert len(set(done(trained.finish()).values())) == 1


def test_the_ranks_of_an_agent_that_is_killed_start_again_on_its_host(training, alpha):
    trained = training("--elastic", "-H", "alpha:1,beta:1")
    before = trained.wait_for_ranks(2)
    alpha.agent().kill()
    after = trained.wait_for_ranks(2)
    assert len(set(before.values()) & set(after.values())) == 1
    assert len(done(trained.finish())) == 2


@pytest.mark.gate
def test_a_host_that_is_cut_off_is_left_out_and_trains_no_more(training, beta):
    trained = training("--min-np", "1", "--keepalive", "5", "-H", "alpha:1,beta:2")
    trained.wait_for_ranks(3)
    lost = beta.agent().children(recursive=True)
    with beta.cut_off():
        trained.wait_for_ranks(1)
        # The other half has ended before this one went on.
        assert not [process for process in lost if lives(process)]
    assert len(trained.wait_for_ranks(3)) == 3  # it is back
    done(trained.finish())


def test_a_host_that_trains_by_itself_goes_on_when_the_other_is_lost_in_an_exchange(training, beta):
    pytest.importorskip("torch")
    trained = training("--min-np", "1", "--keepalive", "2", "-H", "alpha:1,beta:1", script=DILOCO)
    trained.wait_for_ranks(2)
    trained.job.stdout.wait_for(b"exchanging True", 4)
    lost = beta.agent().children(recursive=True)
    with beta.cut_off():
        trained.wait_for_ranks(1)
        assert not [process for process in lost if lives(process)]
    assert done(trained.finish())


@pytest.mark.gate
def test_hosts_come_and_go_as_the_script_says(training, tmp_path, alpha):
    listing = tmp_path / "hosts"
    listing.write_text("alpha:1\n")
    trained = training("--hosts-from", f"cat {listing}", "--min-np", "1")

    def list_hosts(*hosts: str) -> None:
        (tmp_path / "new").write_text("".join(f"{host}\n" for host in hosts))
        (tmp_path / "new").replace(listing)

    (first,) = trained.wait_for_ranks(1).values()
    list_hosts("alpha:1", "beta:2")
    assert first in trained.wait_for_ranks(3).values()
    list_hosts("beta:2")  # rank 0's host leaves
    assert first not in trained.wait_for_ranks(2).values()
    alpha.assert_gone()
    list_hosts("localhost", "beta")
    trained.wait_for_ranks(2)
    done(trained.finish())


def test_a_script_without_elastic_code_starts_again_on_all_hosts(output, python):
    code = (
        "import os, time\n"
        "import distrun\n"
        "distrun.init()\n"
        "if distrun.rank() == 1 and os.environ['DISTRUN_RESTART'] == '0': os._exit(3)\n"
        "distrun.barrier()\n"
        "print('done', distrun.rank(), os.environ['DISTRUN_RESTART'], flush=True)\n"
    )
    printed = output("--elastic", "-H", "alpha:1,beta:1", *python(code))
    assert sorted(printed.splitlines()) == [b"[0] done 0 1", b"[1] done 1 1"]


def test_spares_of_other_hosts_take_over(training):
    trained = training("--spares", "1", "-v", "-H", "alpha:1,beta:1")
    before = trained.wait_for_ranks(2)
    trained.job.stderr.wait_for(b"a spare on beta is warm")
    kill(before[1])
    assert trained.wait_for_ranks(2)[0] == before[0]
    assert len(done(trained.finish())) == 2


def test_an_interrupted_job_leaves_nothing_on_any_host(training):
    trained = training("--elastic", "--spares", "1", "-H", "alpha:1,beta:1")
    trained.wait_for_ranks(2)
    trained.job.process.send_signal(signal.SIGINT)
    assert trained.job.wait() == 130


@pytest.mark.gate
def test_an_sshd_that_ends_costs_its_ranks_and_no_more(training, alpha):
    trained = training("--elastic", "--keepalive", "0", "-H", "alpha:1,beta:1")
    before = trained.wait_for_ranks(2)
    alpha.agent().parent().kill()
    after = trained.wait_for_ranks(2)  # a second connection has seen to it that nothing is left there
    assert set(before.values()) & set(after.values()) == {before[1]}
    assert len(done(trained.finish())) == 2


def test_a_host_whose_agent_starts_during_a_cut_takes_part_when_it_is_over(training, tmp_path, alpha):
    python, starting, go_on = (tmp_path / name for name in ("python", "starting", "go_on"))
    go_on.touch()
    real = shlex.quote(sys.executable)
    python.write_text(f'#!/bin/sh\n>{starting}; until [ -e {go_on} ]; do sleep 0.1; done; exec {real} "$@"\n')
    python.chmod(0o755)
    trained = training("--elastic", "--python", str(python), "-H", "alpha:2,beta:1")  # rank 0 is on alpha
    before = trained.wait_for_ranks(3)
    starting.unlink()
    go_on.unlink()
    alpha.agent().kill()
    wait_until(starting.exists)
    with alpha.cut_off():
        go_on.touch()
        wait_until(lambda: has_unsent(alpha))  # what the agent says of its host
    assert len(set(before.values()) & set(trained.wait_for_ranks(3).values())) == 1
    assert len(done(trained.finish())) == 3


def has_unsent(host):
    """Whether a connection of a host's sshd has data that has not been acknowledged."""
    sockets = host.call("ss", "-Htn", f"sport = :{host.port}").splitlines()
    return any(int(line.split()[2]) > 0 for line in sockets)
