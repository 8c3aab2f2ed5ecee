"""The manifests of a job: a Secret, a headless Service, ConfigMaps with the bundle, and an Indexed Job. Pure.

A pod runs only distrun and its children, without root, capabilities, a way to log in, or a token of the cluster.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distrun.contract.settings import KEY
from distrun.errors import UsageError
from distrun.host.clusters.kubernetes import ENDPOINT, HOSTS, SLOTS
from distrun.runner.hosts.joining.messages import MAY_BE_TRIED_AGAIN
from distrun.tools.kubernetes.bundle import PIECES, Bundle

CONTAINER = "main"
JOB_NAME, INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
"""Labels that the control plane gives the pods of a job."""

_LONGEST_NAME = 57  # characters: the host name of a pod may have 63, with a suffix up to -99999
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?([mkMGTPE]|[KMGTPE]i)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RETRIES = 3  # per index, for pods that end because other pods have

Manifest = dict[str, Any]


@dataclass(frozen=True)
class PodJob:
    """A job as the user has requested it."""

    image: str
    command: tuple[str, ...]
    name: str
    hosts: int = 1
    gpus: int = 0
    slots: int | None = None
    """The number of ranks of each pod. None = one per GPU, or one."""
    cpus: str | None = None
    memory: str | None = None
    namespace: str | None = None
    secret: str | None = None
    """The name of an existing Secret with the entry `key`. None = one is created."""
    exports: tuple[str, ...] = ()
    """The values of -x: `NAME=VALUE`."""
    wdir: str | None = None
    user: int = 65534
    """The user id of the processes. 65534 is nobody."""
    is_writable: bool = False
    """Whether the ranks may write to all of the image, not only to /tmp."""
    gpu_resource: str = "nvidia.com/gpu"
    agent_options: tuple[str, ...] = ()
    """Further options of `distrun agent`."""
    bundle: Bundle | None = None
    """The files that are brought into the pods. None = the image contains distrun and the command."""
    python: str = "python3"
    """The image's Python, which is used if there is a bundle."""

    def __post_init__(self) -> None:
        if len(self.name) > _LONGEST_NAME or _NAME.fullmatch(self.name) is None:
            raise UsageError(
                f"--name {self.name!r} cannot be the name of a job: allowed are at most {_LONGEST_NAME} small letters, "
                "digits and hyphens, from a letter to a letter or digit"
            )
        for option, value in (("--cpus", self.cpus), ("--memory", self.memory)):
            if value is not None and _QUANTITY.fullmatch(value) is None:
                raise UsageError(
                    f"{option} {value!r} is no quantity of Kubernetes: allowed are such as 4, 500m and 64Gi"
                )
        for spec in self.exports:
            name, equals, _ = spec.partition("=")
            if not equals or _VARIABLE.fullmatch(name) is None:
                raise UsageError(f"-x {spec!r} gives a pod no variable: allowed is NAME=VALUE, as pods have no shell")


def manifests(job: PodJob, key: str) -> list[Manifest]:
    """Return the manifests of a job in the order of their creation.

    `key` authenticates its hosts to each other. It goes into the Secret, if one is created.
    """
    secret = _object(job, "v1", "Secret", {"type": "Opaque", "stringData": {"key": key}})
    names = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_NAME: job.name}}
    service = _object(job, "v1", "Service", {"spec": names})
    pods = _object(job, "batch/v1", "Job", {"spec": _job(job)})
    return [*([secret] if job.secret is None else []), service, *_config_maps(job), pods]


def _config_maps(job: PodJob) -> list[Manifest]:
    return [
        _object(job, "v1", "ConfigMap", {"immutable": True, "binaryData": {f"piece{number}": data}}, name)
        for number, (name, data) in enumerate(_pieces(job).items())
    ]


def _pieces(job: PodJob) -> dict[str, str]:
    """Return the pieces by the names of their ConfigMaps, which depend on the content: the same for the same bundle."""
    if job.bundle is None:
        return {}
    names = f"{job.name}-{job.bundle.digest[:8]}"
    return {f"{names}-{number}": base64.b64encode(piece).decode() for number, piece in enumerate(job.bundle.pieces)}


def _object(job: PodJob, version: str, kind: str, content: Manifest, name: str | None = None) -> Manifest:
    namespace = {"namespace": job.namespace} if job.namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name or job.name, **namespace}, **content}


def _job(job: PodJob) -> Manifest:
    # An eviction does not count as a failure. A pod that ends because another one has, or because host 0 was late, is
    # replaced a few times. A rank that fails would fail again, so that ends the job at once.
    lost = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    codes = {"containerName": CONTAINER, "operator": "NotIn", "values": [MAY_BE_TRIED_AGAIN]}
    return {
        "completions": job.hosts,
        "parallelism": job.hosts,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": _RETRIES,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": [lost, {"action": "FailJob", "onExitCodes": codes}]},
        "template": {"spec": _pod(job)},
    }


def _pod(job: PodJob) -> Manifest:
    sources = [{"configMap": {"name": name}} for name in _pieces(job)]
    return {
        "subdomain": job.name,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": job.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job)],
        # Workers of data loaders pass batches through /dev/shm, which has 64 MiB by default. distrun itself needs none.
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "tmp", "emptyDir": {}},
            *([{"name": "pieces", "projected": {"sources": sources}}] if sources else []),
        ],
    }


def _container(job: PodJob) -> Manifest:
    limits = {"cpu": job.cpus, "memory": job.memory, job.gpu_resource: job.gpus or None}
    given = {name: str(value) for name, value in limits.items() if value is not None}
    return {
        "name": CONTAINER,
        "image": job.image,
        **_command(job),
        "env": _environ(job),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({"resources": {"limits": given}} if given else {}),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": not job.is_writable,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "tmp", "mountPath": "/tmp"},
            *([{"name": "pieces", "mountPath": PIECES, "readOnly": True}] if job.bundle is not None else []),
        ],
    }


def _command(job: PodJob) -> Manifest:
    options, command = ["agent", *job.agent_options, "--"], list(job.command)
    if job.bundle is None:
        wdir = {"workingDir": job.wdir} if job.wdir else {}
        return {"command": _literal(["distrun", *options, *command]), **wdir}
    # The working directory may be in the bundle, so `arrival` enters it after unpacking.
    program = [job.python, "-c", job.bundle.program()]
    return {"command": program, "args": _literal([*options, *map(job.bundle.here, command)])}


def _literal(words: list[str]) -> list[str]:
    """Return words escaped for the cluster, which would replace `$(NAME)` by a variable's value, and `$$` by `$`."""
    return [word.replace("$", "$$") for word in words]


def _environ(job: PodJob) -> list[Manifest]:
    secret = {"secretKeyRef": {"name": job.secret or job.name, "key": "key"}}
    variables = {
        HOSTS: str(job.hosts),
        ENDPOINT: f"{job.name}-0.{job.name}",
        **({SLOTS: str(job.slots)} if job.slots is not None else {}),
        "HOME": "/tmp",
        **dict(spec.split("=", 1) for spec in job.exports),
    }
    if job.bundle is not None and "PYTHONPATH" in variables:
        variables["PYTHONPATH"] = ":".join(map(job.bundle.here, variables["PYTHONPATH"].split(":")))
    values = [{"name": name, "value": _literal([value])[0]} for name, value in variables.items()]
    return [{"name": KEY, "valueFrom": secret}, *values]


def default_name(command: Sequence[str], suffix: str) -> str:
    """Return a name for a job, from its script, `python train.py` -> `train-3f9a2`, or else from its program.

    `suffix` makes the name unique.
    """
    scripts = [word for word in command if word.endswith((".py", ".sh"))]
    stem = (scripts or [*command])[0].rpartition("/")[2].partition(".")[0].lower()
    words = re.sub(r"[^a-z0-9]+", "-", stem).strip("-0123456789")[:40].rstrip("-")
    return f"{words or 'job'}-{suffix}"
