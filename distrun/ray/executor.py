"""`Executor`: workers on a Ray cluster that are the ranks of a world, and functions called on all of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import ray

from distrun.contract import horovod as horovod_mode
from distrun.errors import LaunchError, NotOfferedError, UsageError
from distrun.ray import options
from distrun.ray.failures import Failed, collect, forget, raise_failure
from distrun.ray.placement import node_names
from distrun.ray.worker import Call
from distrun.ray.workers import Workers


class Executor:
    """Workers on a Ray cluster, each a rank of one world, and calls of functions on all of them.

    It has the names and meanings of Horovod's `RayExecutor`. Workers are Ray actors and live until `shutdown`, so state
    that a function leaves in its process is kept for the next, including the world that `distrun.init()` joined.

    It is a context manager, which starts the workers and shuts them down. When a call fails on any rank, the failure
    is raised and all workers are ended. `start` starts new ones.
    """

    def __init__(
        self,
        settings: options.Settings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[int] | None = None,
        elastic_timeout: int | None = None,
        override_discovery: bool = True,
        *,
        env: Mapping[str, str] | None = None,
        network: str | None = None,
        horovod: bool | None = None,
    ) -> None:
        """Check the arguments. Ray is not contacted before `start`.

        Args:
            settings: the result of `create_settings`.
            num_workers: the number of workers. Ray packs them on few nodes.
            num_hosts, num_workers_per_host: the numbers of nodes and of workers on each, instead of `num_workers`.
            cpus_per_worker, gpus_per_worker: the resources of each worker. `use_gpu` alone gives each one GPU.
            use_current_placement_group: whether to use the placement group that this process runs in, if it does.
            env: further variables of the workers. DISTRUN_* of this process reach them in any case.
            network: the interfaces and subnets that ranks of other nodes may use, like `distrun --network`.
            horovod: whether `import horovod` gives distrun in the workers. None: if it does here.
            min_workers and the rest: Horovod's arguments for elastic jobs, refused. `override_discovery` changes
                nothing.

        Raises:
            UsageError: the numbers are impossible.
            NotOfferedError: an argument asks for workers that come and go.
        """
        options.refuse_elastic(
            min_workers=min_workers,
            max_workers=max_workers,
            reset_limit=reset_limit,
            cooldown_range=cooldown_range,
            elastic_timeout=elastic_timeout,
        )
        per_host = num_workers_per_host if num_hosts is not None else None
        workers, hosts = options.number_of_workers(num_workers, num_hosts, per_host)
        gpus = options.number_of_gpus(use_gpu, gpus_per_worker)
        chosen = options.Settings() if settings is None else settings
        if not isinstance(chosen, options.Settings):
            raise UsageError(f"settings={settings!r}: give what Executor.create_settings(...) returns")
        self._request = options.WorkerRequest(
            num_workers=workers,
            num_hosts=hosts,
            cpus_per_worker=options.number_of_cpus(cpus_per_worker, gpus),
            gpus_per_worker=gpus,
            use_current_placement_group=use_current_placement_group,
            settings=chosen,
            horovod=horovod_mode.is_on(os.environ) if horovod is None else horovod,
            env=options.variables("env", env),
            network=network or chosen.network,
        )
        self._workers: Workers | None = None
        self._why_unusable = "its workers are not started: call start() first"
        self._submitting = threading.Lock()  # calls of several threads reach all workers in one order

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Iterable[str] | None = None,
    ) -> options.Settings:
        """Return settings, by Horovod's names. Nothing uses SSH: the arguments for it change nothing.

        Args:
            timeout_s: seconds that the ranks wait for one another in `init`.
            ssh_identity_file, ssh_str: not used.
            placement_group_timeout_s: seconds that Ray may take to create the placement group of the workers.
            nics: the interfaces that ranks of other nodes may use.
        """
        return options.Settings(timeout_s, placement_group_timeout_s, nics)

    def __enter__(self) -> Executor:
        if self._workers is None:
            self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.shutdown()

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the workers and assign their ranks. Ray is initialised unless it has been.

        Args:
            executable_cls: a class; if given, each worker makes an object of it, which `execute` passes to functions.
            executable_args, executable_kwargs: the arguments of the class.
            extra_env_vars: further variables of the workers.

        Raises:
            UsageError: the workers are running already, or nodes have different versions of distrun.
            LaunchError: Ray has no resources for the workers in time, or one of them cannot be started.
        """
        if self._workers is not None:
            raise UsageError("the executor has started its workers already: call shutdown() first, or use them")
        env = {**self._request.env, **options.variables("extra_env_vars", extra_env_vars)}
        make = executable_cls and _checked(executable_cls, executable_args, executable_kwargs)
        self._workers = Workers(self._request, env)
        if make is not None:
            self._call("make_executable", make)

    def shutdown(self) -> None:
        """End the workers and release their resources. Does nothing if there are none."""
        workers, self._workers = self._workers, None
        if workers is not None:
            self._why_unusable = "its workers are shut down: call start() first"
            workers.end()

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on all ranks and return the results by rank.

        Args:
            fn, args, kwargs: the call, the same on every rank.
            callbacks: Horovod's argument for its log, refused.

        Raises:
            UsageError: the workers are not running.
            LaunchError: a worker is gone. The text has its rank, its node, the reason and its last lines.
            Exception: the exception of the first rank that failed. Its cause is a `RemoteTraceback`.
        """
        _refuse_callbacks(callbacks)
        return self._call("try_run", _checked(fn, args, kwargs))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on all ranks, and return Ray's references to the results at once, by rank.

        `ray.get` of a reference raises Ray's own errors. A rank whose function raises leaves the world. Keep the
        executor until the results are complete: its workers end with it.

        Raises:
            UsageError: the workers are not running.
        """
        return self._submit("run", _checked(fn, args, kwargs))[1]

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[..., Any]] | None = None) -> list[Any]:
        """Call `fn(executable)` on all ranks, with each rank's object of `executable_cls`, and return the results.

        Raises:
            Exception: see `run`.
        """
        _refuse_callbacks(callbacks)
        return self._call("try_execute", _checked(fn)[0])

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call `fn(executable)` on rank 0, and return its result.

        Raises:
            Exception: see `run`.
        """
        return self._call("try_execute", _checked(fn)[0], slice(1))[0]

    def _call(self, method: str, payload: Any, ranks: slice = slice(None)) -> list[Any]:
        """Return the results of a method of the workers by rank. Any failure ends all workers."""
        workers, refs = self._submit(method, payload, ranks)
        try:
            values, failed, left = collect(refs)
        except BaseException as error:  # Ctrl-C
            self._kill(workers, f"{type(error).__name__} has ended its workers")
            raise
        if failed:
            self._fail(workers, failed, left)
        return values

    def _submit(self, method: str, payload: Any, ranks: slice = slice(None)) -> tuple[Workers, list[Any]]:
        """Call a method of the workers with `payload`, which is pickled once for all of them. Return the workers, and
        Ray's references."""
        with self._submitting:
            workers = self._workers
            if workers is None:
                raise UsageError(f"the executor cannot be used, for {self._why_unusable}")
            if not workers.are_connected():
                raise UsageError("this process has left the executor's cluster: call shutdown(), then start()")
            try:
                packed = ray.put(payload)
            except Exception as error:  # Ray's own text is a page long, the text of its cause one sentence
                why = error.__cause__ or error
                raise LaunchError(f"the function or its arguments cannot be pickled: {why}") from why
            return workers, [getattr(actor, method).remote(packed) for actor in workers.actors[ranks]]

    def _fail(self, workers: Workers, failed: Sequence[Failed], left: Sequence[Any]) -> NoReturn:
        if self._workers is not workers:  # another thread has ended them
            raise LaunchError(f"the call did not return, for {self._why_unusable}")
        what = "was lost" if failed[0].lost is not None else "raised an exception"
        self._kill(workers, f"all workers were ended when rank {failed[0].rank} {what}")
        forget(left)
        raise_failure(failed, workers.facts, node_names(workers.facts))

    def _kill(self, workers: Workers, why: str) -> None:
        if self._workers is workers:
            self._workers, self._why_unusable = None, f"{why}: call start() for new ones"
        workers.kill()


def _refuse_callbacks(callbacks: object) -> None:
    if callbacks:
        raise NotOfferedError(
            "callbacks: there is no log that workers send while they run; print, or use ray.util.queue.Queue"
        )


def _checked(function: Any, args: Any = None, kwargs: Mapping[str, Any] | None = None) -> Call:
    if not callable(function):
        raise UsageError(f"{function!r} cannot be called: give a function, and its arguments as args=(...)")
    if args is not None and (not isinstance(args, Sequence) or isinstance(args, str)):
        raise UsageError(
            f"args={args!r} is not a sequence: give the function's arguments as a tuple, as in args=(1, 2)"
        )
    return function, tuple(args or ()), dict(kwargs or {})
