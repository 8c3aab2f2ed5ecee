"""Which ranks come together at their host before they meet rank 0, and that there is a control tree then."""

from types import SimpleNamespace

import pytest

from distrun.runtime.transport.control.control_tree import FAN_OUT, control_tree
from distrun.runtime.world.bootstrap.across_hosts import _is_large


@pytest.mark.parametrize(
    ("size", "local_size", "fan_out", "is_large"),
    [
        *((4, 2, 0, False), (72, 8, 0, False), (128, 64, 0, False), (73, 8, 0, True), (10_000, 8, 0, True)),
        *((10_000, 1, 0, False), (4, 2, 1, True), (4, 1, 1, False)),
    ],
)
def test_many_ranks_of_other_hosts_or_a_setting_make_a_job_large(size, local_size, fan_out, is_large):
    topology, settings = SimpleNamespace(size=size, local_size=local_size), SimpleNamespace(fan_out=fan_out)
    assert _is_large(SimpleNamespace(topology=topology, settings=settings)) == is_large


def test_there_is_a_tree_if_a_rank_has_met_rank_0_through_another():
    hosts = ((0, 1), (2, 3))
    assert control_tree(hosts, 2, 0) is None
    tree = control_tree(hosts, 2, 0, is_relayed=True)
    assert (tree.parent, tree.fan_out) == (0, FAN_OUT)
