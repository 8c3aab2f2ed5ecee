"""Ranks started by `distrun`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from distrun.contract.elastic.variables import TRIAL
from distrun.contract.launch import LaunchContract
from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.runtime.transport.rendezvous.protocol import RendezvousEndpoint, parse_endpoints
from distrun.runtime.world.environments.base import Environment


class Distrun(Environment):
    """Everything is in the launch contract."""

    name = "distrun"

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return LaunchContract.is_present(environ)

    def topology(self) -> Topology:
        contract = self._contract()
        return Topology(**{field.name: getattr(contract, field.name) for field in fields(Topology)})

    def job_name(self) -> str:
        # The host's name in the plan distinguishes `-H localhost:2,127.0.0.1:2`: two hosts in the plan, one machine.
        contract = self._contract()
        # The trials of a sweep are worlds of one job that exist at the same time.
        trial = f".{self._environ[TRIAL]}.{contract.restart}" if TRIAL in self._environ else ""
        return f"{self.name}.{contract.job}.{contract.hostname}{trial}"

    def generation(self) -> int:
        return self._contract().generation

    def slot(self) -> int:
        return self._contract().slot

    def job_key(self) -> bytes | None:
        try:
            return bytes.fromhex(self._contract().key)
        except ValueError:  # the value is a secret, so neither the message nor a chained traceback may show it
            raise UsageError("DISTRUN_KEY is not in hexadecimal digits: start the script with `distrun`") from None

    def endpoint(self) -> RendezvousEndpoint:
        text = self._contract().rendezvous
        if not text:
            raise UsageError(
                "DISTRUN_RENDEZVOUS is empty though the job has several hosts: start the script with `distrun`, and "
                "pass on all of its variables"
            )
        return RendezvousEndpoint(parse_endpoints(text), self.job_key())

    def _contract(self) -> LaunchContract:
        return LaunchContract.from_environ(self._environ)
