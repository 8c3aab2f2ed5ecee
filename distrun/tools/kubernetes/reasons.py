"""The reason why a pod does not run, or has ended, as a sentence, from the pod's status. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distrun.runner.hosts.joining.messages import MAY_BE_TRIED_AGAIN
from distrun.tools.kubernetes.manifests import INDEX

_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_NOT_CREATED = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


@dataclass(frozen=True)
class Obstacle:
    """The reason why a pod does not run yet."""

    text: str
    is_final: bool = False
    """Whether waiting is useless."""


def obstacle(pod: dict[str, Any]) -> Obstacle | None:
    """Return why a pod does not run, or None if it runs, or nothing is known to keep it from running."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting", {})
        reason, said = waiting.get("reason", ""), _said(waiting)
        if reason in _NO_IMAGE:
            # ErrImagePull comes first, and may pass. ImagePullBackOff follows if it did not.
            text = f"the image {container['image']!r} cannot be pulled for pod {name}{said}; see that its name is right"
            return Obstacle(f"{text} and that the cluster may pull it", reason != "ErrImagePull")
        if reason in _NOT_CREATED:
            return Obstacle(f"the container of pod {name} cannot be created{said}")
    for condition in status.get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return Obstacle(
                f"no node has room for pod {name}{_said(condition)}; ask for less with --gpus, --cpus or --memory, or "
                "wait until there is"
            )
    return None


def death(pod: dict[str, Any]) -> str:
    """Return how the cluster has ended a pod, which the pod's log does not show, or "" if it has not."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for condition in status.get("conditions", ()):
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"pod {name} was evicted ({condition.get('reason', 'no reason is told')}){_said(condition)}"
    for container in status.get("containerStatuses", ()):
        ended = container.get("state", {}).get("terminated") or {}
        if ended.get("reason") == "OOMKilled":
            return f"pod {name} was killed, as it used more memory than its limit; give it more with --memory"
        if ended.get("reason") in ("StartError", "ContainerCannotRun"):
            return f"the container of pod {name} could not be started{_said(ended)}; is its program in the image?"
    return ""


def exit_code(pod: dict[str, Any]) -> int | None:
    """Return the exit code of a pod's container, or None if it has not ended."""
    ended = _ended(pod)
    return int(ended["exitCode"]) if ended else None


def first_failure(pod: dict[str, Any], pods: Sequence[dict[str, Any]]) -> str:
    """Return a pod's exit status and last message, if it has failed first and pod 0 has not failed itself; else "".

    This is the case for a pod that cannot use its bundle, or whose program does not exist. `pods` are all of the job.
    """
    failed = sorted(filter(_has_failed, pods), key=lambda item: str(_ended(item).get("finishedAt", "")))
    if not failed or failed[0] is not pod or any(map(_is_first, failed)):
        return ""
    return f"pod {pod['metadata']['name']} has ended with status {exit_code(pod)}{_said(_ended(pod))}"


def status_of(pods: Sequence[dict[str, Any]]) -> int:
    """Return the exit status of a failed job: pod 0's, or another failed pod's if pod 0 has none of its own."""
    of_first = [code for pod in pods if _is_first(pod) and (code := exit_code(pod))]
    of_failed = [code for pod in pods if _has_failed(pod) and (code := exit_code(pod))]
    of_its_own = [code for code in of_first if code != MAY_BE_TRIED_AGAIN]
    return (of_its_own[-1:] or of_failed or of_first or [1])[0]


def _is_first(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"].get("labels", {}).get(INDEX) == "0")


def _has_failed(pod: dict[str, Any]) -> bool:
    """Whether a pod has failed by itself, not because others have."""
    return exit_code(pod) not in (None, 0, MAY_BE_TRIED_AGAIN)


def _ended(pod: dict[str, Any]) -> dict[str, Any]:
    for container in pod.get("status", {}).get("containerStatuses", ()):
        if ended := container.get("state", {}).get("terminated"):
            return dict(ended)
    return {}


def _said(what: dict[str, Any]) -> str:
    message = " ".join(str(what.get("message", "")).split()).rstrip(".")
    return f": {message}" if message else ""
