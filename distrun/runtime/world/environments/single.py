"""A plain `python train.py`: a world of one."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping

from distrun.contract.topology import Topology
from distrun.runtime.world.environments.base import Environment


class Single(Environment):
    name = "no launcher"

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        self._job_name = f"single.{uuid.uuid4().hex}"

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return True

    def topology(self) -> Topology:
        return Topology(0, 1, 0, 1, 0, 1, socket.gethostname())

    def job_name(self) -> str:
        return self._job_name
