"""Horovod's exceptions.

A collective that fails raises one of ours, all of which are a `HorovodInternalError`.
"""

from distrun.errors import HorovodInternalError as HorovodInternalError


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  # Horovod's name
    """Horovod's news, in elastic training, that hosts came or left. Nothing here raises it."""

    def __init__(self, skip_sync: bool = False) -> None:
        """`skip_sync`: whether the ranks that remain have the same state already."""
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Horovod's complaint about a framework it was not built for. Nothing is built here, and nothing raises it."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        """`name` is the framework, built against `version`."""
        super().__init__(f"{name} {installed_version} is installed, and {version} is what this was built for")
        self.name = name
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self) -> tuple[type, tuple[str | None, ...]]:
        return type(self), (self.name, self.version, self.installed_version)
