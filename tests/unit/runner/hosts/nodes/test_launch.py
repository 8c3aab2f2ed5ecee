"""Every launcher plans the whole job by itself, and all plans agree."""

import pytest

from distrun.host.interfaces import Interface
from distrun.runner.hosts.joining.messages import Member
from distrun.runner.hosts.nodes.launch import plan_of
from distrun.runner.hosts.nodes.messages import Assembly
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.protocol.handshake import HostInfo


def node(name, ranks, last):
    info = HostInfo("1", "3", 1, 80 + last, "", (Interface("eth0", f"10.0.0.{last}", 24),), 90 + last)
    return Member(None, 2, name, ranks, "/", info=info)


NODES = (node("a", 1, 1), node("b", 2, 2))


def planned(here, environ=None, **request):
    """The part of our own host."""
    context = LaunchContext(environ or {}, "/", "0" * 32, "1" * 64, 4711, cores=4, slots=4)
    plan = plan_of(Assembly("0" * 32, NODES, here, 0), LaunchRequest(("train",), **request), context, 5.0)
    return plan, plan.agents[here]


def test_nodes_start_different_ranks_of_one_job():
    parts = [planned(here)[1] for here in range(2)]
    assert [[rank.rank for rank in part.ranks] for part in parts] == [[0], [1, 2]]
    ranks = [rank.environ for part in parts for rank in part.ranks]
    shared = ("DISTRUN_RENDEZVOUS", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "DISTRUN_KEY", "DISTRUN_JOB")
    (values,) = {tuple(environ[name] for name in shared) for environ in ranks}
    assert values == ("10.0.0.1:91", "10.0.0.1", "81", "3", "1" * 64, "0" * 32)


def test_a_node_has_its_own_environment_and_cores():
    plan, part = planned(1, {"DATA": "/local"})
    assert (part.environ["DATA"], part.environ["OMP_NUM_THREADS"], part.remote) == ("/local", "2", False)
    assert plan.notes == ("OMP_NUM_THREADS=2 on b (4 cores, 2 ranks); set it to override",)


def test_ranks_may_have_what_torchrun_sets():
    environ = planned(1, torchrun_env=True, name="me")[1].ranks[0].environ
    names = ("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    assert [environ[name] for name in names] == ["1", "2", "1", "me", "0"]
    assert "TORCHELASTIC_RUN_ID" not in planned(1)[1].ranks[0].environ


@pytest.mark.parametrize("map_by", ["slot", "node"])
def test_options_of_one_node_do_not_change_who_has_which_rank(map_by):
    assert [rank.rank for rank in planned(1, map_by=map_by)[1].ranks] == [1, 2]
