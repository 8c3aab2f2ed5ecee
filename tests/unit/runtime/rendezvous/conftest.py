"""Fixtures for tests of the rendezvous whose ranks are threads."""

from in_process.rendezvous_of_threads import endpoint

__all__ = ["endpoint"]
