"""Horovod's exceptions.

A failing collective raises one of distrun's exceptions, which are all subclasses of `HorovodInternalError`.
"""

from distrun.elastic.interrupt import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from distrun.errors import HorovodInternalError as HorovodInternalError


class HorovodVersionMismatchError(ImportError):
    """Horovod's error for a framework that it was not built for. distrun never raises it, as nothing is compiled."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        """`name` is the framework, built against `version`."""
        super().__init__(f"{name} {installed_version} is installed, and {version} is what this was built for")
        self.name = name
        self.version = version
        self.installed_version = installed_version

    def __reduce__(self) -> tuple[type, tuple[str | None, ...]]:
        return type(self), (self.name, self.version, self.installed_version)
