"""A timeline of several hosts is on one clock, as exactly as it says; also where their clocks really differ."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from machines.namespaces import RemoteHost
from machines.system_packages import call

AHEAD = 5  # seconds
STRAGGLER = """
import time
import distrun, distrun.data
import numpy as np

distrun.init()
gradient = np.ones(1000, np.float32)
for batch in distrun.data.watch([0] * 100):
    if distrun.rank() == 1:
        time.sleep(0.02)
    distrun.allreduce_(gradient, name="gradient")
"""


@pytest.fixture
def omega(network, alpha, home):
    """A third host, whose clock is ahead of the others'."""
    try:
        call("unshare", "--time", "--monotonic", str(AHEAD), "true")
    except RuntimeError as error:
        pytest.skip(f"there are no namespaces of time here: {error}")
    subnet = int(alpha.address.split(".")[2])
    host = RemoteHost("omega", network.directory, network.bridge, subnet, 4, ahead=AHEAD)
    network.hosts["omega"] = host
    home.know(network.hosts.values())
    yield host
    del network.hosts["omega"]
    host.destroy()


def moved(trace, rank):
    """Return when each operation of a rank was done, in microseconds, by its number."""
    pieces = [event for event in trace["traceEvents"] if event["pid"] == 5_000_000 + rank and event.get("tid") == 2]
    moving = [event for event in pieces if event["name"] == "moving"]
    return {event["args"]["number"]: event["ts"] + event["dur"] for event in moving}


@pytest.mark.parametrize(
    ("first", "other"), [("localhost", "beta"), pytest.param("alpha", "omega", marks=pytest.mark.gate)]
)
def test_hosts_are_on_one_clock(distrun, python, tmp_path, request, first, other):
    ahead = 1_000_000_000 * request.getfixturevalue(other).ahead
    file = tmp_path / "t.json"
    distrun("-H", f"{first}:1,{other}:1", "--timeline", str(file), *python(STRAGGLER)).ended(0)
    trace = json.loads(file.read_text())
    clocks = {first: {"offsetNanoseconds": 0, "errorNanoseconds": 0}, **trace["clocks"]}
    between = clocks[other]["offsetNanoseconds"] - clocks[first]["offsetNanoseconds"]
    error = sum(clock["errorNanoseconds"] for clock in clocks.values())
    assert abs(between - ahead) <= error
    one, two = moved(trace, 0), moved(trace, 1)
    assert one.keys() == two.keys()
    assert all(abs(one[number] - two[number]) < 1e6 * AHEAD / 2 for number in one)
    waits = [event for event in trace["traceEvents"] if event["name"].startswith("waiting for rank ")]
    on_training = Counter()  # of rank 0, in microseconds
    for event in waits:
        if event["tid"] == 1 and event["pid"] == 5_000_000:
            on_training[event["name"]] += event["dur"]
    assert max(on_training, key=on_training.get) == "waiting for rank 1"
