"""The keys of a rendezvous, which ranks of another one do not know."""

from distrun.runtime.transport.rendezvous.protocol import RendezvousEndpoint
from distrun.runtime.world.bootstrap.across_hosts import endpoint_of_round
from distrun.runtime.world.bootstrap.facts import RendezvousRound


def test_keys_hold_for_one_rendezvous():
    endpoint = RendezvousEndpoint((("127.0.0.1", 1),), b"key", lambda: (b"sealed", b"made"), lambda greeting: b"made")
    first, second = (
        endpoint_of_round(endpoint, RendezvousRound(1, 1)),
        endpoint_of_round(endpoint, RendezvousRound(1, 2)),
    )
    later = endpoint_of_round(endpoint, RendezvousRound(2, 1))
    assert len({endpoint.key, first.key, second.key, later.key}) == 4
    assert first.greeting() == (b"sealed", first.opener(b"sealed"))
    assert second.opener(b"sealed") != first.opener(b"sealed")
