"""Allgather against `numpy.concatenate`, with as many rows on each rank as it likes."""

from operations import perform_all

import distrun

perform_all(150, "allgather")
assert distrun.allgather([distrun.rank()]).tolist() == list(range(distrun.size()))
