"""Jobs that end well although their ranks have not worked together: they get a word, and no other job does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

WORKED_ALONE = b"distrun: the ranks have called init() and exchanged no results, so each has worked alone: "
RAN_TWICE = b"plain.py ran 2 times with the same output, since nothing in it lets ranks train together: "
WENT_ON = b"distrun: the ranks exited with code 0 while processes of theirs were running (2), which ended with "
INITIALISED = "import numpy as np, distrun\ndistrun.init()\nrank = distrun.rank()\n"
FIRST_VALUES = "distrun.broadcast(np.ones(3), 0)\ndistrun.barrier()\n"


@pytest.mark.parametrize("code", ["print(rank)", FIRST_VALUES])
def test_ranks_that_have_exchanged_nothing_but_first_values_get_a_word(distrun, python, code):
    assert distrun("-np", "2", *python(INITIALISED + code)).ended(0).count(WORKED_ALONE) == 1


@pytest.mark.parametrize(
    "code",
    [
        FIRST_VALUES + "distrun.allreduce(np.ones(3))",
        "distrun.allgather_object(rank)",
        "distrun.alltoall(np.ones(2))",
        "distrun.reducescatter(np.ones(2))",
        "distrun.join()",
    ],
)
def test_ranks_that_have_exchanged_something_do_not(distrun, python, code):
    assert WORKED_ALONE not in distrun("-np", "2", *python(INITIALISED + code)).ended(0)


@pytest.mark.parametrize("options", [("-np", "1"), ("-q", "-np", "2")])
def test_neither_does_one_rank_nor_a_quiet_job(distrun, python, options):
    assert WORKED_ALONE not in distrun(*options, *python(INITIALISED)).ended(0)


@pytest.fixture
def plain(distrun, tmp_path):
    """Returns what a script says on stderr that two ranks run."""

    def run(code, *options):
        (tmp_path / "plain.py").write_text(code)
        return distrun("-np", "2", *options, "--wdir", str(tmp_path), sys.executable, "plain.py").ended(0)

    return run


def test_a_plain_script_that_all_ranks_run_alike_gets_a_word(plain):
    assert plain("print('epoch 1: loss 0.5')").count(RAN_TWICE) == 1
    assert RAN_TWICE not in plain("print('epoch 1: loss 0.5')", "-q")


@pytest.mark.parametrize("code", ["", "import os\nprint(os.getpid())", "print(1)  # torch.distributed"])
def test_scripts_whose_ranks_differ_or_know_each_other_do_not(plain, code):
    assert RAN_TWICE not in plain(code)


DAEMON = """
import os, pathlib, time
at = pathlib.Path("daemon" + os.environ["RANK"])
if os.fork():
    while not at.exists():
        time.sleep(0.01)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
at.with_suffix(".new").write_text(str(os.getpid()))
at.with_suffix(".new").rename(at)
time.sleep(1000)
"""


def test_a_script_that_makes_itself_a_daemon_gets_a_word_and_ends_with_the_job(plain, tmp_path):
    assert plain(DAEMON).count(WENT_ON) == 1
    assert not any(Path("/proc", (tmp_path / f"daemon{rank}").read_text()).exists() for rank in range(2))


def test_helpers_that_end_soon_after_their_ranks_do_not(plain):
    assert WENT_ON not in plain("import subprocess\nsubprocess.Popen(['sleep', '0.01'])")
