"""The part of the cluster's API that a job needs. Only this module uses the package kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distrun.errors import LaunchError, UsageError
from distrun.tools.kubernetes.manifests import CONTAINER, JOB_NAME, Manifest

if TYPE_CHECKING:
    from kubernetes.client import ApiException

_TIMEOUT = 30.0  # seconds for an answer
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_IDLE_TIMEOUT = 600.0  # seconds without a line of a log until the connection is taken to be lost
_UNAUTHORIZED, _FORBIDDEN, NOT_FOUND, _CONFLICT, _TOO_MANY, _SERVER = 401, 403, 404, 409, 429, 500


class ApiError(LaunchError):
    """The cluster refuses a request, or cannot be reached. The text names the request and the reason."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.code = status

    @property
    def may_pass(self) -> bool:
        """Whether the request may work later: the cluster was not reached, is busy, or has an internal error."""
        return not self.code or self.code == _TOO_MANY or self.code >= _SERVER


class Client:
    """One namespace of one cluster."""

    def __init__(self, context: str | None = None, namespace: str | None = None) -> None:
        """
        Args:
            context: a context of the kubeconfig. None = the current one, or the cluster that this process runs in.
            namespace: the namespace. None = the context's.

        Raises:
            UsageError: the package is missing, or no cluster is configured.
        """
        try:
            import kubernetes
        except ImportError:
            raise UsageError(
                "--apply needs the package kubernetes: pip install 'distrun[kubernetes]'; without --apply "
                "the manifests are printed, for kubectl"
            ) from None
        self._package: Any = kubernetes
        configured = self._configure(context)
        self.namespace = namespace or configured
        self._core, self._batch = kubernetes.client.CoreV1Api(), kubernetes.client.BatchV1Api()

    def _configure(self, context: str | None) -> str:
        """Find the cluster, by the kubeconfig or as the one that this process runs in, and return the namespace.

        Raises:
            UsageError: there is neither.
        """
        config = self._package.config
        try:
            contexts, active = config.list_kube_config_contexts()
            config.load_kube_config(context=context)
            chosen = next((item for item in contexts if item["name"] == context), active)
            return str(chosen["context"].get("namespace") or "default")
        except (config.ConfigException, OSError) as error:
            problem = str(error).rstrip(".")
        try:
            if context is None:
                config.load_incluster_config()
                return _OWN_NAMESPACE.read_text().strip()
        except (config.ConfigException, OSError):
            pass  # report the first problem, which the user can fix
        raise UsageError(f"no cluster is configured here: {problem}; set KUBECONFIG or give --context")

    def create(self, manifest: Manifest) -> str:
        """Create an object, and return its unique id.

        Raises:
            ApiError: the cluster refuses it.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        made = self._call(f"create {kind} {name}", self._method("create", kind), self.namespace, manifest)
        return str(made.metadata.uid)

    def start_job(self, name: str) -> None:
        """Start a job that was created suspended. Raises ApiError."""
        body = {"spec": {"suspend": False}}
        self._call(f"start Job {name}", self._batch.patch_namespaced_job, name, self.namespace, body)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, and the objects that it owns. Do nothing if it does not exist.

        Raises:
            ApiError: the cluster refuses it.
        """
        delete = self._method("delete", kind)
        try:
            self._call(f"delete {kind} {name}", delete, name, self.namespace, propagation_policy="Background")
        except ApiError as error:
            if error.code != NOT_FOUND:
                raise

    def pods(self, job: str) -> list[Manifest]:
        """Return the pods of a job, as plain data. Raises ApiError."""
        found = self._data(self._core.list_namespaced_pod, "list pods", label_selector=f"{JOB_NAME}={job}")
        return list(found["items"])

    def job(self, name: str) -> Manifest | None:
        """Return a job, or None if it no longer exists. Raises ApiError."""
        return self._read("Job", name)

    def pod(self, name: str) -> Manifest | None:
        """Return a pod, or None if it no longer exists. Raises ApiError."""
        return self._read("Pod", name)

    def log(self, pod: str) -> Iterator[bytes]:
        """Yield the log of a pod from its start, with the time before each line. Raises ApiError.

        It ends when the pod ends, or earlier if the connection breaks.
        """
        response = self._call(
            f"read the log of pod {pod}",
            self._core.read_namespaced_pod_log,
            pod,
            self.namespace,
            container=CONTAINER,
            follow=True,
            timestamps=True,
            _preload_content=False,
            _request_timeout=(_TIMEOUT, _IDLE_TIMEOUT),
        )
        try:
            yield from response.stream(amt=None)
        except Exception:  # urllib3 raises many kinds: the connection is lost, but the pod may still run
            return
        finally:
            response.release_conn()

    def _method(self, verb: str, kind: str) -> Any:
        """Return the method of the package that does something with one object of a kind."""
        api = self._batch if kind == "Job" else self._core
        return getattr(api, f"{verb}_namespaced_{'config_map' if kind == 'ConfigMap' else kind.lower()}")

    def _read(self, kind: str, name: str) -> Manifest | None:
        try:
            return self._data(self._method("read", kind), f"read {kind} {name}", name)
        except ApiError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    def _data(self, method: Any, what: str, *arguments: Any, **options: Any) -> Manifest:
        response = self._call(what, method, *arguments, self.namespace, _preload_content=False, **options)
        data: Manifest = json.loads(response.data)
        return data

    def _call(self, what: str, method: Any, *arguments: Any, **options: Any) -> Any:
        """Call a method of the package. Its errors are raised as ApiError."""
        try:
            return method(*arguments, **{"_request_timeout": _TIMEOUT, **options})
        except self._package.client.ApiException as error:
            raise ApiError(f"the cluster did not {what}: {_reason(error, self.namespace)}", error.status or 0) from None
        except Exception as error:  # urllib3 raises many kinds
            # HTTPConnection(host='127.0.0.1', port=1): Failed to establish a new connection: [Errno 111] Connection ...
            reason = str(getattr(error, "reason", error)).rpartition(": ")[2]
            raise ApiError(f"the cluster did not {what}: it cannot be reached ({reason})") from None


def _reason(error: ApiException, namespace: str) -> str:
    try:
        said = str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        said = str(error.reason or error.status)
    if error.status == _FORBIDDEN:
        return f"that is forbidden to you in namespace {namespace}; ask for the right to, or give -n ({said})"
    if error.status == _UNAUTHORIZED:
        return f"your login is not accepted, or has expired; log in again ({said})"
    if error.status == _CONFLICT:
        return f"{said}; give another --name, or delete it"
    return said
