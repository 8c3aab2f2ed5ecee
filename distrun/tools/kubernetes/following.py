"""Applying a job and following it: its output, what keeps its pods from running, and how it ends.

Pod 0 prints the output of all ranks, and its exit status is the job's. It may be replaced while the job runs.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from distrun.errors import LaunchError
from distrun.tools.kubernetes.client import ApiError, Client
from distrun.tools.kubernetes.logs import PodLog
from distrun.tools.kubernetes.manifests import INDEX, Manifest
from distrun.tools.kubernetes.reasons import death, first_failure, obstacle, status_of

_INTERVAL = 1.0  # seconds from one look at the pods to the next
_LOG_TIMEOUT = 10.0  # seconds for the rest of a log, after the job is over
_STOP_TIMEOUT = 1.0  # seconds for a log that is stopped
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _InterruptedError(BaseException):
    """A signal asks this process to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum


class _Signals:
    """The signals that end this process: they raise _InterruptedError. The first one may be deferred."""

    def __init__(self) -> None:
        self._signum = 0
        self._is_deferred = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """A context in which signals raise. SIGHUP stays ignored if nohup has started this process."""
        chosen = [signum for signum in _ENDING if signal.getsignal(signum) is not signal.SIG_IGN]
        before = {signum: signal.signal(signum, self._handle) for signum in chosen}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A context that defers the first signal to its end: inside, it is unknown what the cluster has created."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self._signum:
            raise _InterruptedError(self._signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        is_first, self._signum = not self._signum, signum
        if not (self._is_deferred and is_first):
            raise _InterruptedError(signum)


def run(client: Client, name: str, made: Sequence[Manifest]) -> int:
    """Create a job, show what it prints, and return its exit status.

    The job is created first, suspended, and owns the other objects, so deleting it deletes all. When it is over, it
    stays, because its pods have the logs, and the other objects are deleted. The job is deleted if a signal ends this
    process, or if its pods cannot run. It keeps running if the cluster stops answering.

    Its manifest is the last one of those in `made`.

    Raises:
        LaunchError: it cannot be created, or cannot run.
    """
    *others, job = made
    owned: list[tuple[str, str]] = []
    signals = _Signals()
    is_created = False
    try:
        with signals.caught():
            with signals.deferred():
                uid = client.create({**job, "spec": {**job["spec"], "suspend": True}})
                is_created = True
            owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": name, "uid": uid}
            for manifest in others:
                with signals.deferred():
                    metadata = {**manifest["metadata"], "ownerReferences": [owner]}
                    client.create({**manifest, "metadata": metadata})
                    owned.append((manifest["kind"], metadata["name"]))
            client.start_job(name)
            _say(f"job {name} is created in namespace {client.namespace}")
            status = Follower(client, name).follow()
    except _LostError as error:
        raise LaunchError(f"{error}; job {name} goes on") from None
    except BaseException as error:
        if isinstance(error, _InterruptedError):
            _say(f"{signal.Signals(error.signum).name}: deleting job {name}")
        if is_created:
            _delete(client, [*owned, (job["kind"], name)])
        if isinstance(error, _InterruptedError):
            return 128 + error.signum
        raise
    _delete(client, owned)
    return status


def _delete(client: Client, objects: Sequence[tuple[str, str]]) -> None:
    for kind, name in reversed(objects):
        with suppress(ApiError):
            client.delete(kind, name)


class _LostError(Exception):
    """The cluster no longer answers questions about the job."""


class Follower:
    """One job, from its creation to its end."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._printed: set[str] = set()
        self._shown: dict[str, PodLog] = {}  # by the uid of the pod
        self._pods: dict[str, Manifest] = {}  # the last state seen, by uid: a failing job's pods are deleted

    def follow(self) -> int:
        """Show what the job prints until it is over, and return its exit status.

        Raises:
            LaunchError: its pods cannot run, or it was deleted.
        """
        try:
            while (job := self._look()) is None or (verdict := _verdict(job)) is None:
                time.sleep(_INTERVAL)  # a signal ends it
            for log in self._shown.values():
                log.join(_LOG_TIMEOUT)
        finally:
            for log in self._shown.values():
                log.stop(_STOP_TIMEOUT)
        return self._end(*verdict)

    def _look(self) -> Manifest | None:
        """Return the current state of the job, or None if it is unknown. Show news about its pods."""
        try:
            job = self._client.job(self._name)
            if job is None:
                raise LaunchError(f"job {self._name} was deleted by somebody else")
            pods = self._client.pods(self._name)
        except ApiError as error:
            if not error.may_pass:
                raise _LostError(str(error)) from None
            self._tell(f"{error}; the job goes on, and it is asked for again")
            return None
        self._pods |= {_uid(pod): pod for pod in pods}
        self._explain(pods)
        for pod in sorted(pods, key=lambda item: str(item["metadata"].get("creationTimestamp", ""))):
            if pod["metadata"].get("labels", {}).get(INDEX) == "0":
                self._show(pod)
        return job

    def _explain(self, pods: Sequence[Manifest]) -> None:
        """Print once what keeps pods from running. Raise LaunchError if waiting does not help.

        After the job has started, always wait: a replacement's obstacle may pass, and a running job must not be ended
        for it.
        """
        for pod in pods:
            found = obstacle(pod)
            if found is not None and found.is_final and not self._shown:
                raise LaunchError(found.text)
            if text := found.text if found is not None else death(pod):
                self._tell(text)

    def _show(self, pod: Manifest) -> None:
        """Show the log of pod 0, once it has one, in a thread, because there may be news about other pods meanwhile."""
        uid, phase = _uid(pod), pod.get("status", {}).get("phase")
        if uid not in self._shown and phase in ("Running", "Succeeded", "Failed"):
            self._shown[uid] = PodLog(self._client, pod["metadata"]["name"], self._tell)
            self._shown[uid].start()

    def _end(self, has_succeeded: bool, reason: str) -> int:
        if has_succeeded:
            return 0
        with suppress(ApiError):
            self._pods |= {_uid(pod): pod for pod in self._client.pods(self._name)}
        pods = list(self._pods.values())
        for pod in pods:
            if text := death(pod) or first_failure(pod, pods):
                self._tell(text)
        _say(f"job {self._name} has failed{f': {reason}' if reason else ''}")
        return status_of(pods)

    def _tell(self, text: str) -> None:
        """Print a sentence, unless it has been printed before."""
        if text not in self._printed:
            self._printed.add(text)
            _say(text)


def _uid(pod: Manifest) -> str:
    return str(pod["metadata"].get("uid", pod["metadata"]["name"]))


def _verdict(job: Manifest) -> tuple[bool, str] | None:
    """Return whether a job has succeeded, with the cluster's message, or None if it is not over."""
    conditions: list[dict[str, Any]] = job.get("status", {}).get("conditions", [])
    for condition in conditions:
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            return condition["type"] == "Complete", str(condition.get("message", ""))
    return None


def _say(text: str) -> None:
    print(f"distrun: {text}", file=sys.stderr, flush=True)
