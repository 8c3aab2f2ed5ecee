"""The plan as text, which shows no secrets, and as JSON, which arrives as it was sent."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import AgentPlan, RankPlan, describe
from distrun.runner.planning.planner import make_plan
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route

LAUNCHER = LaunchContext(
    environ={"PATH": "/bin", "RANK": "7", "HOME": "/root"},
    cwd="/work",
    job="0" * 32,
    key="5ec4e7" * 10 + "5ec4",
    master_port=4711,
    cores=8,
    slots=2,
)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("\udc80\udcff"))


def test_the_description_shows_how_hosts_are_reached():
    routes = {"a": Route("a", "a.net", jump=Route("gate", "gate"))}
    made = make_plan(LaunchRequest(("train",), hosts=(Host("a", 1),)), replace(LAUNCHER, routes=routes))
    assert "host a (a.net through gate): 1 rank" in describe(made, {})


def test_the_description_shows_everything_but_the_key():
    made = make_plan(LaunchRequest(("train",), np=2, exports=("A=b",), hosts=(Host("localhost", 4),)), LAUNCHER)
    text = describe(made, LAUNCHER.environ)
    for expected in ("2 ranks on 1 host", "command:   train", "A='b'", "rank 1(2): local 1(2)", "OMP_NUM_THREADS='4'"):
        assert expected in text
    assert LAUNCHER.key not in text
    assert "HOME" not in text


@given(
    st.builds(
        AgentPlan,
        host=TEXT,
        command=st.lists(TEXT, min_size=1),
        wdir=TEXT,
        grace=st.floats(0, 1e6),
        environ=st.dictionaries(TEXT, TEXT),
        ranks=st.lists(
            st.builds(
                RankPlan, *[st.integers(0, 1 << 20)] * 5, environ=st.dictionaries(TEXT, TEXT), stdin=st.booleans()
            )
        ),
    )
)
def test_an_agents_plan_survives_the_journey_whatever_bytes_are_in_it(agent):
    assert AgentPlan.from_json(agent.to_json()) == agent
