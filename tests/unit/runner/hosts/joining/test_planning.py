"""The plan of hosts that have joined: a part for each, and the ranks of a machine numbered together."""

from distrun.runner.hosts.joining.messages import Member
from distrun.runner.hosts.joining.planning import plan_of
from distrun.runner.planning.request import LaunchContext, LaunchRequest

CONTEXT = LaunchContext({"HOME": "/root"}, "/here", "0" * 32, "1" * 64, 4711, cores=4, slots=4)


def planned(*members, **request):
    return plan_of(members, LaunchRequest(("train",), **request), CONTEXT, 5.0)


def told(plan, *names):
    """These variables of all ranks, by rank."""
    ranks = {rank.rank: rank.environ for part in plan.agents for rank in part.ranks}
    return [tuple(ranks[number][name] for name in names) for number in range(plan.size)]


def test_each_host_has_its_ranks_its_directory_and_its_index_order():
    plan = planned(Member(0, 2, "a", 1, "/a", machine="x"), Member(1, 2, "b", 2, "/b", machine="y"))
    assert [(part.host, part.wdir, part.remote, len(part.ranks)) for part in plan.agents] == [
        ("a", "/a", False, 1),
        ("b", "/b", True, 2),
    ]
    assert told(plan, "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DISTRUN_HOSTNAME") == [
        ("0", "0", "1", "a"),
        ("1", "0", "2", "b"),
        ("2", "1", "2", "b"),
    ]
    assert "HOME" not in plan.agents[1].environ


def test_the_directory_that_the_user_gives_is_that_of_all():
    assert planned(Member(0, 1, "a", 1, "/a"), wdir="/data").agents[0].wdir == "/data"


def test_agents_of_one_machine_share_its_local_ranks_and_its_gpus():
    plan = planned(
        Member(0, 3, "a", 1, "/a", ("3",), "x"),
        Member(1, 3, "b", 1, "/b", ("0",), "y"),
        Member(2, 3, "a (host 2)", 1, "/c", ("1",), "x"),
    )
    assert [(part.host, [rank.rank for rank in part.ranks]) for part in plan.agents] == [
        ("a", [0]),
        ("a (host 2)", [1]),
        ("b", [2]),
    ]
    assert told(plan, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DISTRUN_HOSTNAME", "DISTRUN_CROSS_SIZE") == [
        ("0", "2", "a", "2"),
        ("1", "2", "a", "1"),
        ("0", "1", "b", "2"),
    ]
    assert [part.environ["CUDA_VISIBLE_DEVICES"] for part in plan.agents] == ["3,1", "3,1", "0"]
