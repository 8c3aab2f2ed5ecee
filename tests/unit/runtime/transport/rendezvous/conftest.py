"""Fixtures for tests of the rendezvous whose ranks are threads."""

from in_process.rendezvous_of_threads import endpoint, join
from in_process.thread_clock import clock

__all__ = ["clock", "endpoint", "join"]
