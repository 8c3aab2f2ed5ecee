"""The round of the rendezvous, and the keys that are valid for this round only."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from distrun.runtime.transport.rendezvous.protocol import RendezvousEndpoint


@dataclass(frozen=True)
class RendezvousRound:
    """The number of a rendezvous in the job. Ranks of another round do not find each other, even in the same job and at
    the same port."""

    generation: int
    inits: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.inits}"


def endpoint_of_round(endpoint: RendezvousEndpoint, rendezvous_round: RendezvousRound) -> RendezvousEndpoint:
    """Return the endpoint with keys that are valid for one round only.

    A rank that is a generation ahead or behind is refused like any process without the key.
    """

    def derived(key: bytes) -> bytes:
        return hmac.digest(key, f"generation {rendezvous_round}".encode(), "sha256")

    def greet(make: Callable[[], tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
        greeting, key = make()
        return greeting, derived(key)

    def find(opener: Callable[[bytes], bytes], greeting: bytes) -> bytes:
        return derived(opener(greeting))

    return replace(
        endpoint,
        key=endpoint.key and derived(endpoint.key),
        greeting=endpoint.greeting and partial(greet, endpoint.greeting),
        opener=endpoint.opener and partial(find, endpoint.opener),
    )
