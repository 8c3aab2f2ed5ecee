"""The response cache: which requests a rank knows by their cache ids."""

from __future__ import annotations

from distrun.runtime.negotiation.response_cache import ResponseCache
from distrun.runtime.operations.request import Request


def request(name: str | None, extent: int = 3) -> Request:
    """Return an allreduce of `extent` elements."""
    return Request("allreduce", name, "float32", ((extent,),))


def test_a_request_has_no_cache_id_before_it_was_decided():
    cache = ResponseCache()
    assert cache.id_of(request(None)) == -1
    assert cache.id_under((0, "loss"), request("loss")) == -1


def test_a_named_request_is_known_by_its_id_and_its_key():
    cache = ResponseCache()
    cache.add(request("loss"), 7, (0, "loss"))
    assert cache.id_under((0, "loss"), request("loss")) == 7
    assert cache.keys[7] == (0, "loss")
    assert cache.request(7) == request("loss")


def test_an_unnamed_request_has_no_key():
    cache = ResponseCache()
    cache.add(request(None), 4, None)
    assert cache.id_of(request(None)) == 4
    assert 4 not in cache.keys


def test_two_requests_that_take_turns_under_one_name_keep_their_ids():
    cache = ResponseCache()
    key = (0, "loss")
    cache.add(request("loss", 3), 1, key)
    cache.add(request("loss", 5), 2, key)
    assert [cache.id_under(key, request("loss", extent)) for extent in (3, 5, 3, 5, 4)] == [1, 2, 1, 2, -1]
    assert cache.ids_under(key) == [1, 2]
