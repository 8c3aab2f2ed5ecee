"""Fixtures for tests of backends whose ranks are threads."""

from in_process.hosts_of_threads import reductions_for_threads, small_pieces

__all__ = ["reductions_for_threads", "small_pieces"]
