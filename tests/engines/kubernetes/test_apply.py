"""`distrun k8s --apply` against an emulated API: what is created, shown, explained, returned and deleted.

The emulator keeps objects and has no control plane behind it: the tests say what becomes of pods and jobs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

kmock = pytest.importorskip("kmock")

DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test
SECRETS, SERVICES, PODS, MAPS = (
    f"/api/v1/namespaces/team/{kind}" for kind in ("secrets", "services", "pods", "configmaps")
)
JOBS = "/apis/batch/v1/namespaces/team/jobs"
STARTED = {"phase": "Running", "containerStatuses": [{"name": "main", "image": "me/x", "state": {"running": {}}}]}


def ended(code: int, **more: Any) -> dict[str, Any]:
    """The status of a pod whose container has ended."""
    state = {"terminated": {"exitCode": code, **more}}
    return {"phase": "Failed", "containerStatuses": [{"name": "main", "image": "me/x", "state": state}]}


class Api(threading.Thread):
    """The emulator, in a thread with a loop of its own."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.url = ""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self.start()
        assert self._ready.wait(DEADLINE)

    def run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        async with kmock.KubernetesEmulator() as self.emulator, kmock.Server(self.emulator):
            for kind in ("v1/configmaps", "v1/secrets", "v1/services", "v1/pods", "batch/v1/jobs"):
                self.emulator.resources[kind] = {}
            self.url = str(self.emulator.url).rstrip("/")
            self._ready.set()
            await self._over.wait()

    def call(self, method: str, path: str, data: Any = None) -> Any:
        """Ask the API, as a control plane does."""
        body = None if data is None else json.dumps(data).encode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(self.url + path, body, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE) as response:
            return json.load(response)

    def names(self, path: str) -> list[str]:
        """The names of the objects of a kind."""
        return [item["metadata"]["name"] for item in self.call("GET", path)["items"]]

    def add_pod(self, name: str, index: int, status: dict[str, Any], uid: str | None = None) -> None:
        """Let a pod of the job appear."""
        labels = {"batch.kubernetes.io/job-name": "x", "batch.kubernetes.io/job-completion-index": str(index)}
        metadata = {"name": name, "uid": uid or name, "labels": labels, "namespace": "team"}
        self.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status})

    def set_status(self, path: str, status: dict[str, Any]) -> None:
        """Say what has become of an object."""
        self.call("PATCH", path, {"status": status})

    def finish(self, kind: str, message: str = "") -> None:
        """Let the job be over."""
        condition = {"type": kind, "status": "True", "message": message}
        self.set_status(f"{JOBS}/x", {"conditions": [condition]})

    def write(self, pod: str, *lines: str) -> None:
        """Have the log of a pod hold these lines."""
        stamped = "".join(f"2030-01-31T12:00:{number:02}.000000000Z {line}\n" for number, line in enumerate(lines))
        self.answer(f"get {PODS}/{pod}/log", stamped.encode())

    def answer(self, path: str, content: Any) -> None:
        """Have a path answered with this."""
        self._loop.call_soon_threadsafe(lambda: self.emulator[path] << content)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self.join(DEADLINE)
        self._loop.close()


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.close()


class Applied:
    """A running `distrun k8s --apply`."""

    def __init__(self, api: Api, config: Path, *options: str) -> None:
        cluster = {"name": "c", "cluster": {"server": api.url}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
        users = [{"name": "u", "user": {}}]
        whole = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
        config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **whole}))
        command = ["k8s", "--image", "me/x", "--hosts", "2", "--name", "x", "--apply", *options, "--", "python", "x.py"]
        self._log = config.with_suffix(".log")
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "distrun.runner", *command],
                stdout=log,
                stderr=log,
                env={**os.environ, "KUBECONFIG": str(config)},
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until the log has a text."""
        deadline = time.monotonic() + DEADLINE
        while text not in self.log:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)  # a file has no event for what is appended

    def wait(self) -> int:
        return self.process.wait(DEADLINE)


@pytest.fixture
def apply(api, tmp_path):
    """Applies a job, and waits until it is created, or something else is said."""
    started = []

    def start(*options: str, until: str = "is created in namespace team") -> Applied:
        started.append(Applied(api, tmp_path / "config", *options))
        started[-1].wait_for(until)
        return started[-1]

    yield start
    for applied in started:
        applied.process.kill()
        applied.process.wait(DEADLINE)


@pytest.mark.gate
def test_a_job_is_created_shown_and_over_with_nothing_left_but_itself(api, apply):
    api.write("x-0", "[0] loss 0.5", "[1] loss 0.5")
    running = apply()
    assert [api.names(path) for path in (SECRETS, SERVICES, JOBS)] == [["x"], ["x"], ["x"]]
    job = api.call("GET", f"{JOBS}/x")
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["suspend"] is False
    for path in (SECRETS, SERVICES):
        (owner,) = api.call("GET", f"{path}/x")["metadata"]["ownerReferences"]
        assert "uid" in owner  # the emulator gives none
        assert (owner["apiVersion"], owner["kind"], owner["name"]) == ("batch/v1", "Job", "x")
    key = api.call("GET", f"{SECRETS}/x")["stringData"]["key"]
    api.add_pod("x-0", 0, STARTED)
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU."}
    api.add_pod("x-1", 1, {"phase": "Pending", "conditions": [no_room]})
    running.wait_for("no node has room for pod x-1: 0/3 nodes: no GPU; ask for less with --gpus")
    api.finish("Complete")
    assert running.wait() == 0, running.log
    assert "[1] loss 0.5\n" in running.log
    assert key not in running.log
    assert [api.names(path) for path in (SECRETS, SERVICES, JOBS)] == [[], [], ["x"]]


@pytest.mark.gate
def test_a_job_that_fails_gives_its_status_and_the_reason_of_the_cluster(api, apply):
    api.write("x-0", "distrun: rank 1 on x-1 exited with code 7")
    running = apply()
    api.add_pod("x-0", 0, ended(7))
    api.finish("Failed", "Container main for pod team/x-1 failed with exit code 7 matching FailJob rule at index 1")
    assert running.wait() == 7
    assert "rank 1 on x-1 exited with code 7\n" in running.log
    assert "job x has failed: Container main for pod team/x-1 failed with exit code 7" in running.log


def test_evictions_and_lack_of_memory_are_told_and_the_log_goes_on_with_the_replacement(api, apply):
    api.write("x-0-a", "first")
    api.write("x-0-b", "second")
    running = apply()
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drained"}
    api.add_pod("x-0-a", 0, {**ended(143), "conditions": [evicted]})
    running.wait_for("pod x-0-a was evicted (EvictionByEvictionAPI): drained")
    running.wait_for("first")  # a log comes when it comes
    api.add_pod("x-0-b", 0, STARTED)
    running.wait_for("second")
    api.set_status(f"{PODS}/x-0-b", ended(137, reason="OOMKilled"))
    api.finish("Failed")
    assert running.wait() == 137
    assert running.log.index("first") < running.log.index("second")
    assert "pod x-0-b was killed, as it used more memory than its limit; give it more with --memory" in running.log


def test_a_log_whose_connection_ends_early_goes_on_with_each_line_once(api, apply):
    log = ["[0] step 1"]

    def stamped():
        lines = (f"2030-01-31T12:00:{number:02}.000000000Z {line}\n" for number, line in enumerate(log))
        return f"{''.join(lines)}2030-01-31T12:00:59.0000".encode()  # the connection has ended within a line

    api.answer(f"get {PODS}/x-0/log", stamped)
    running = apply()
    api.add_pod("x-0", 0, STARTED)
    running.wait_for("[0] step 1")
    log.append("[0] step 2")
    running.wait_for("[0] step 2")
    log.append("[0] step 3")
    api.set_status(f"{PODS}/x-0", {**ended(0), "phase": "Succeeded"})
    api.finish("Complete")
    assert running.wait() == 0, running.log
    assert [running.log.count(f"[0] step {number}") for number in (1, 2, 3)] == [1, 1, 1]


def test_a_cluster_that_has_a_problem_for_a_while_does_not_end_the_job(api, apply):
    running = apply()
    job = api.call("GET", f"{JOBS}/x")
    answers = [kmock.Response(status=503, payload={"kind": "Status", "message": "etcd has no leader"})]
    api.answer(f"get {JOBS}/x", lambda: answers[-1])
    running.wait_for("did not read Job x: etcd has no leader; the job goes on")
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    answers.append(kmock.Response(payload=job))
    assert running.wait() == 0
    assert running.log.count("etcd has no leader") == 1


def test_a_job_that_may_not_be_read_any_more_goes_on_with_all_that_it_needs(api, apply):
    running = apply()
    said = {"kind": "Status", "code": 401, "message": "Unauthorized"}
    api.answer(f"get {JOBS}/x", kmock.Response(status=401, payload=said))
    assert running.wait() == 1
    assert "your login is not accepted, or has expired; log in again (Unauthorized); job x goes on" in running.log
    assert [api.names(path) for path in (SECRETS, SERVICES, JOBS)] == [["x"], ["x"], ["x"]]


def test_a_pod_that_fails_before_pod_0_can_tell_of_it_is_told_with_its_last_words(api, apply):
    running = apply()
    said = "distrun: cryptography is not in the image\n"
    api.add_pod("x-1", 1, ended(3, message=said))
    api.finish("Failed", "Container main for pod team/x-1 failed")
    assert running.wait() == 3
    assert "pod x-1 has ended with status 3: distrun: cryptography is not in the image\n" in running.log


def test_what_is_brought_goes_with_the_job(api, apply, tmp_path):
    (tmp_path / "code").mkdir()
    running = apply("--ship", str(tmp_path / "code"))
    names = api.names(MAPS)
    assert len(names) > 3
    assert all(api.call("GET", f"{MAPS}/{name}")["metadata"]["ownerReferences"][0]["name"] == "x" for name in names)
    api.finish("Complete")
    assert running.wait() == 0, running.log
    assert (api.names(MAPS), api.names(JOBS)) == ([], ["x"])


def test_nohup_is_respected(api, apply):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = apply()
    finally:
        signal.signal(signal.SIGHUP, before)
    running.process.send_signal(signal.SIGHUP)
    api.finish("Complete")
    assert running.wait() == 0, running.log


def test_an_image_that_cannot_be_pulled_for_a_replacement_does_not_end_a_job_that_runs(api, apply):
    api.write("x-0", "[0] step 1")
    running = apply()
    api.add_pod("x-0", 0, STARTED)
    running.wait_for("[0] step 1")
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "the registry is away"}}
    api.add_pod("x-1", 1, {"phase": "Pending", "containerStatuses": [{"image": "me/x", "state": waiting}]})
    running.wait_for("cannot be pulled for pod x-1: the registry is away")
    api.finish("Complete")
    assert running.wait() == 0, running.log


def test_an_image_that_is_not_there_ends_the_job_with_its_name(api, apply):
    running = apply()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "me/x"'}}
    api.add_pod("x-1", 1, {"phase": "Pending", "containerStatuses": [{"image": "me/x", "state": waiting}]})
    assert running.wait() == 1
    assert "the image 'me/x' cannot be pulled for pod x-1: Back-off pulling image" in running.log
    assert [api.names(path) for path in (SECRETS, SERVICES, JOBS)] == [[], [], []]


def test_ctrl_c_deletes_all_of_it(api, apply):
    running = apply()
    running.process.send_signal(signal.SIGINT)
    assert running.wait() == 130
    assert [api.names(path) for path in (SECRETS, SERVICES, JOBS)] == [[], [], []]


def test_what_is_forbidden_or_there_already_is_one_sentence_and_nothing_is_left(api, apply):
    said = {"kind": "Status", "code": 403, "message": 'jobs.batch is forbidden: User "u" cannot create resource "jobs"'}
    api.answer(f"post {JOBS}", kmock.Response(status=403, payload=said))
    running = apply(until="did not create")
    assert running.wait() == 1
    assert "the cluster did not create Job x: that is forbidden to you in namespace team" in running.log
    assert 'User "u" cannot create' in running.log
    assert "Traceback" not in running.log
    assert [api.names(path) for path in (SECRETS, SERVICES)] == [[], []]


def test_a_secret_that_is_there_is_used_and_kept(api, apply):
    running = apply("--secret", "mine")
    env = api.call("GET", f"{JOBS}/x")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert env[0]["valueFrom"]["secretKeyRef"] == {"name": "mine", "key": "key"}
    assert api.names(SECRETS) == []
    running.process.terminate()
    assert running.wait() == 143


def complaint(config: str, *options: str) -> str:
    """The only line that is printed where no cluster can be talked with."""
    command = [sys.executable, "-m", "distrun.runner", "k8s", "--image", "me/x", "--name", "x", "--apply", *options]
    environ = {**os.environ, "KUBECONFIG": config, "HOME": "/nonexistent"}
    done = subprocess.run([*command, "--", "true"], capture_output=True, text=True, env=environ, timeout=DEADLINE)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_a_cluster_that_is_not_configured_or_does_not_answer_is_one_sentence(api, apply, tmp_path):
    assert "no cluster is configured here: " in complaint(str(tmp_path / "nothing"))
    apply()  # which writes the configuration
    config = tmp_path / "config"
    assert "no cluster is configured here: " in complaint(str(config), "--context", "other")
    config.write_text(config.read_text().replace(api.url, "http://127.0.0.1:1"))
    said = complaint(str(config))
    assert "the cluster did not create Job x: it cannot be reached ([Errno 111] Connection refused)" in said
