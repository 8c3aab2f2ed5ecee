"""The report of the first failure, and the last lines of stderr in it."""

from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.failure_report import (
    LAST_LINES,
    StderrTails,
    format_report,
    gpu_number_remedy,
    missing_horovod_remedy,
    missing_module_remedy,
)


def test_the_report_names_rank_host_process_end_and_last_lines():
    failure = Failure(3, 42, "exited with code 42")
    assert format_report(failure, "rank 3 on worker-1", {3: 77}, [b"first", b"\xff"], "logs/rank.3/stderr") == (
        "distrun: rank 3 on worker-1 (pid 77) exited with code 42\n"
        "distrun: its last lines on stderr (all of it: logs/rank.3/stderr):\n"
        "    first\n"
        "    \udcff"
    )


def test_a_silent_rank_and_a_failure_of_no_rank_have_short_reports():
    assert format_report(Failure(0, 1, "exited with code 1"), "rank 0 on a", {0: 7}, []).endswith(
        "wrote nothing to stderr"
    )
    assert format_report(Failure(None, 1, "the agent is lost"), "", {}, []) == "distrun: the agent is lost"
    assert (
        format_report(Failure(0, 127, "could not be started"), "rank 0 on a", {}, [])
        == "distrun: rank 0 on a could not be started"
    )


def test_last_words_are_the_last_lines_in_bounded_memory():
    words = StderrTails()
    for number in range(100_000):
        words.record(0, b"line %d\r\n" % number)
    assert words.lines(0) == [b"line %d" % number for number in range(100_000 - LAST_LINES, 100_000)]
    words.record(1, b"x" * 10_000_000)
    assert len(words.lines(1)[0]) < 10_000
    assert words.lines(2) == []
    words.record(2, b"10%\r20%\r30%\nboom\n\n")
    assert words.lines(2) == [b"30%", b"boom"]  # of a progress bar the last state


def test_a_rank_that_lost_its_peer_says_so():
    words = StderrTails()
    words.record(0, b"Traceback ...\ndistrun.errors.JobAbortedError: rank 1 is gone\n")
    words.record(1, b"about distrun.errors.JobAbortedError\n")
    assert words.reports_lost_peer(0)
    assert not words.reports_lost_peer(1)


def test_an_mpirun_that_has_lost_a_host_says_so():
    tails = StderrTails()
    tails.record(
        0, b"--------\nPRTE has lost communication with a remote daemon.\n\n  HNP daemon   : [prterun-vm@0,0]\n"
    )
    tails.record(1, b"he said: PRTE has lost communication with a remote daemon.\n")
    assert [tails.reports_lost_host(rank) for rank in range(3)] == [True, False, False]


def test_a_rank_that_took_its_local_rank_for_a_device_number_is_told_so():
    tails = StderrTails()
    tails.record(
        1,
        b"    torch._C._cuda_setDevice(device)\ntorch.AcceleratorError: CUDA error: invalid device ordinal\n"
        b"GPU device may be out of range, do you have enough GPUs?\n"
        b"Search for `cudaErrorInvalidDevice' in https://docs.nvidia.com/cuda/ for more information.\n"
        b"CUDA kernel errors might be asynchronously reported at some other API call\n",
    )
    tails.record(2, b"RuntimeError: CUDA error: out of memory\n")
    (line,) = gpu_number_remedy(tails, 1)
    assert "local_rank() is no device number where ranks share GPUs (--share-gpus)" in line
    assert "torch.cuda.current_device()" in line
    assert gpu_number_remedy(tails, 2) == gpu_number_remedy(tails, 3) == []


def test_a_rank_without_horovod_is_told_of_the_option_for_its_scripts():
    tails = StderrTails()
    tails.record(0, b"ModuleNotFoundError: No module named 'horovod.torch'; 'horovod' is not a package\n")
    tails.record(1, b"ModuleNotFoundError: No module named 'horovod'\n")
    tails.record(2, b"ModuleNotFoundError: No module named 'horovodlike'\n")
    expected = [
        "distrun: distrun runs scripts of Horovod unchanged, without it: give --horovod, or set DISTRUN_HOROVOD=1"
    ]
    assert missing_horovod_remedy(tails, 0) == missing_horovod_remedy(tails, 1) == expected
    assert missing_horovod_remedy(tails, 2) == []
    assert missing_module_remedy(tails, 1, "alpha") == []
