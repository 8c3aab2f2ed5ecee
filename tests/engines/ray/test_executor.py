"""The executor on a real Ray cluster of two nodes: its calls, its world, and what happens when something is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from distrun.errors import LaunchError, UsageError
from distrun.runner.job.calls import RemoteTraceback


@pytest.fixture
def executor(cluster):
    """A function that starts an executor, which is shut down at the end."""
    from distrun.ray import Executor

    made = []

    def start(**arguments):
        made.append(Executor(**arguments))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.shutdown()


def steps_until(end):
    """Return a function that reduces until another rank ends; rank 1 does `end` in its tenth step."""

    def train():
        import numpy as np

        import distrun

        distrun.init()
        for step in range(10**9):
            distrun.allreduce(np.ones(3))
            if step == 10 and distrun.rank() == 1:
                if end == "error":
                    raise KeyError("no such sample", 7)
                if end == "kill":
                    print("these are my last words", file=sys.stderr, flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)

    return train


@pytest.mark.gate
def test_workers_on_two_nodes_are_ranks_of_one_world_that_stays_up_between_calls(executor):
    def place(greeting, *, mark):
        import distrun

        distrun.init()
        numbers = distrun.rank(), distrun.size(), distrun.local_rank(), distrun.local_size(), distrun.cross_rank()
        return greeting, mark, numbers, distrun.allgather_object(os.getpid()), id(distrun.topology())

    workers = executor(num_hosts=2, env={"MARK": "1"})
    first = workers.run(place, ("hi",), {"mark": "!"})
    assert [(one[:3]) for one in first] == [("hi", "!", (rank, 2, 0, 1, rank)) for rank in range(2)]
    assert first[0][3] == first[1][3]
    assert workers.run(place, ("hi",), {"mark": "!"}) == first
    assert workers.run(lambda: os.environ["MARK"]) == ["1", "1"]


def test_references_objects_of_a_class_and_rank_0_alone_are_called_as_by_horovod(executor):
    import ray

    class Counter:
        def __init__(self, start, step=1):
            self.value, self.step = start, step

        def count(self):
            self.value += self.step
            return self.value

    workers = executor(num_workers=2)
    assert ray.get(workers.run_remote(lambda x: x + int(os.environ["RANK"]), [5])) == [5, 6]
    workers.shutdown()
    workers.start(Counter, [10], {"step": 2}, extra_env_vars={"EXTRA": "yes"})
    assert workers.execute(lambda counter: counter.count()) == [12, 12]
    assert workers.execute_single(lambda counter: counter.count()) == 14
    assert workers.execute(lambda counter: (counter.count(), os.environ["EXTRA"])) == [(16, "yes"), (14, "yes")]
    with pytest.raises(UsageError, match="has started its workers already"):
        workers.start()


@pytest.mark.gate
def test_the_exception_of_a_rank_is_raised_as_the_object_it_was_and_new_workers_can_be_started(executor):
    workers = executor(num_hosts=2)
    with pytest.raises(KeyError) as caught:
        workers.run(steps_until("error"))
    assert caught.value.args == ("no such sample", 7)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "on rank 1:" in str(caught.value.__cause__)
    assert "in train" in str(caught.value.__cause__)
    with pytest.raises(UsageError, match="ended when rank 1 raised an exception: call start"):
        workers.run(os.getpid)
    workers.start()
    assert len(set(workers.run(os.getpid))) == 2


class Unreadable:
    """An object that can be pickled, and not be unpickled."""

    def __reduce__(self):
        return int, ("x",)


class Ends(BaseException):
    """An exception that would end the driver."""


def raises(error):
    """Return a function that raises."""

    def function():
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "args", "told"),
    [
        (lambda: threading.Lock(), (), r"the result of rank 0 cannot be pickled: TypeError: .*lock"),
        (lambda: Unreadable(), (), r"the result of rank 0 cannot be unpickled here: ValueError: .*'x'"),
        (len, (Unreadable(),), r"rank 0 cannot unpickle the function or its arguments: ValueError: .*'x'"),
        (lambda: sys.exit(3), (), r"the function called sys.exit\(3\)"),
        (raises(Ends("of its own")), (), r"rank 0 raised an exception that cannot be raised here(.*\n)*.*of its own"),
        (raises(KeyboardInterrupt()), (), r"rank 0 raised an exception that cannot .*(.*\n)*KeyboardInterrupt"),
        (print, (threading.Lock(),), r"the function or its arguments cannot be pickled: .*lock.*$"),
    ],
)
def test_what_cannot_travel_is_told_as_text(executor, function, args, told):
    with pytest.raises(LaunchError, match=told):
        executor(num_workers=1).run(function, args)


def test_an_executor_that_nothing_refers_to_any_more_gives_its_room_back(cluster):
    from ray.util import placement_group_table

    from distrun.ray import Executor

    def removed(group):
        return placement_group_table()[group]["state"] == "REMOVED"

    forgotten = Executor(num_workers=1)
    forgotten.start()
    group = forgotten._workers._room.group.id.hex()
    assert not removed(group)
    threads = set(threading.enumerate())
    del forgotten
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)
    assert removed(group)


def test_calls_of_several_threads_reach_all_workers_in_one_order(executor):
    def meet(number):
        import distrun

        distrun.init()
        return distrun.allgather_object(number)

    workers = executor(num_workers=2)
    with ThreadPoolExecutor(4) as threads:
        met = list(threads.map(lambda number: workers.run(meet, (number,)), range(40)))
    assert met == [[[number] * 2] * 2 for number in range(40)]


def test_a_worker_that_is_killed_is_one_failure_report_with_its_last_lines(executor):
    workers = executor(num_hosts=1, num_workers_per_host=2)
    pids = workers.run(lambda: os.getpid())
    processes = [psutil.Process(pid) for pid in pids]
    with pytest.raises(LaunchError) as caught:
        workers.run(steps_until("kill"))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("rank 1 on node ")
    assert lines[0].endswith(f"(pid {pids[1]}) was killed by SIGKILL")
    assert lines[1:] == ["distrun: its last lines on stderr:", "    these are my last words"]
    assert psutil.wait_procs(processes, timeout=60)[1] == []


def test_a_lost_node_is_named(executor, cluster, another_node):
    node = another_node(num_cpus=1)
    workers = executor(num_hosts=3)
    doomed = [fact.node for fact in workers._workers.facts].index(node.node_id)
    begun = threading.Timer(0.0, cluster.remove_node, (node,), {"allow_graceful": False})
    workers.run(lambda: None)
    begun.start()
    with pytest.raises(LaunchError, match=rf"^rank {doomed} on node \S+ is gone: its node is lost"):
        workers.run(steps_until("never"))
    begun.join()


DRIVER = """
import os, sys, time
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
from distrun.ray import Executor
executor = Executor(num_hosts=2)
executor.start()
print(*executor.run(os.getpid), flush=True)
executor.run(time.sleep, (600,))
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_driver_that_is_killed_or_interrupted(cluster, signum):
    command = [sys.executable, "-c", DRIVER, cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
        workers = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
        assert len(workers) == 2
        driver.send_signal(signum)
    assert psutil.wait_procs(workers, timeout=60)[1] == []


def test_all_workers_of_a_node_see_their_gpus_in_the_order_of_their_local_ranks(executor, another_node):
    another_node(num_cpus=2, num_gpus=4)
    workers = executor(num_hosts=1, num_workers_per_host=2, gpus_per_worker=2)
    visible = workers.run(lambda: (os.environ["LOCAL_RANK"], os.environ["CUDA_VISIBLE_DEVICES"]))
    assert [rank for rank, _ in visible] == ["0", "1"]
    assert visible[0][1] == visible[1][1]
    gpus = visible[0][1].split(",")
    assert sorted(gpus) == ["0", "1", "2", "3"]
    assert [fact.gpus[0] for fact in workers._workers.facts] == gpus[:2]
    workers.shutdown()
    assert executor(num_workers=1).run(lambda: os.environ["CUDA_VISIBLE_DEVICES"]) == [""]


TOO_MANY = (
    r"no room for 64 workers of 1 CPU in 0.5 s: nodes in the cluster: 2, with room for 4 .*free at the moment: \d CPU"
)


def test_too_many_workers_are_refused_with_what_is_free(executor):
    from distrun.ray import Executor

    settings = Executor.create_settings(placement_group_timeout_s=0.5)
    with pytest.raises(LaunchError, match=TOO_MANY):
        executor(settings=settings, num_workers=64)


def test_horovods_script_runs_as_it_is(cluster, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import ray, sys\n"
        "ray.init(address=sys.argv[1], log_to_driver=False)\n"
        "from horovod.ray import RayExecutor\n"
        "def train():\n"
        "    import horovod.torch as hvd, torch\n"
        "    hvd.init()\n"
        "    return float(hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum)), hvd.__name__\n"
        "settings = RayExecutor.create_settings(timeout_s=30)\n"
        "executor = RayExecutor(settings, num_workers=2, use_gpu=False)\n"
        "executor.start()\n"
        "print(executor.run(train))\n"
        "executor.shutdown()\n"
    )
    command = [str(Path(sys.executable).with_name("distrun")), "--horovod", sys.executable, str(script)]
    done = subprocess.run([*command, cluster.address], capture_output=True, text=True, timeout=240, check=False)
    assert "[(1.0, 'horovod.torch'), (1.0, 'horovod.torch')]" in done.stdout, done.stdout + done.stderr
