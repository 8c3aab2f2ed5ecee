"""The choice between NCCL and staging: every reason for one or the other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace

import pytest

from distrun.errors import UsageError
from distrun.runtime.gpu import transport_choice
from distrun.runtime.gpu.transport_choice import (
    AUTO,
    NCCL,
    STAGED,
    GpuInfo,
    TransportChoice,
    agree,
    gpu_info,
    nccl_version,
)


def a_gpu(
    bus_id: str = "0000:01:00.0",
    host: str = "node1",
    may_share: bool = False,
    version: int = 23203,
    missing: str = "",
    can_share: bool = True,
    wanted: str = AUTO,
    uuid: str = "",
) -> GpuInfo:
    return GpuInfo(host, bus_id, uuid or f"{bus_id} of {host}", may_share, version, missing, can_share, wanted)


def choose(infos: Sequence[GpuInfo]) -> TransportChoice:
    return transport_choice.choose(dict(enumerate(infos)))


APART = [a_gpu("0000:01:00.0"), a_gpu("0000:02:00.0"), a_gpu("0000:01:00.0", "node2")]


NO_NCCL = {"version": 0, "missing": "it was eaten"}
OLD = "ranks 0, 1 share a GPU, which NCCL 2.29.7 refuses: update it to 2.30.0 or newer"


@pytest.mark.parametrize(
    ("infos", "chosen"),
    [
        (APART, TransportChoice(NCCL, False)),
        ([a_gpu(may_share=True, version=23000)] * 2, TransportChoice(NCCL, True)),
        (
            [a_gpu(host=host, may_share=True, version=23000, uuid="9f") for host in ("pod1", "pod2")],
            TransportChoice(NCCL, True),
        ),
        ([a_gpu(may_share=True, version=22907)] * 2, TransportChoice(STAGED, True, OLD)),
        (
            [APART[0], a_gpu("0000:02:00.0", "node3", **NO_NCCL)],
            TransportChoice(STAGED, False, "rank 1 (on node3) has no NCCL, as it was eaten"),
        ),
        ([a_gpu(**NO_NCCL)], TransportChoice(NCCL, False)),
    ],
    ids=["apart", "shared", "shared by two pods", "shared by an old one", "none on a rank", "none, not needed"],
)
def test_gpus_go_through_an_nccl_that_can(infos, chosen):
    assert choose(infos) == chosen


def test_an_nccl_without_averages():
    chosen = choose([APART[0], a_gpu("0000:02:00.0", version=2804)])
    assert chosen.kind == STAGED
    assert "rank 1 (on node1) has NCCL 2.8.4: update it to 2.10.0 or newer" in chosen.reason


def test_shared_gpus_are_staged_where_nccl_has_been_told_of_gpus_of_their_own():
    """One process set has ranks that share a GPU; the one before it had none."""
    chosen = transport_choice.choose({4: a_gpu(may_share=True, can_share=False), 7: a_gpu(may_share=True)})
    assert (chosen.kind, chosen.shares_gpus) == (STAGED, True)
    assert chosen.reason.startswith("ranks 4, 7 share a GPU, and NCCL was used there before by ranks with a GPU each")


def test_shared_gpus_need_permission():
    text = "ranks 1, 2 use one GPU, 0000:02:00.0 of node1: .* DISTRUN_SHARE_GPUS=1"
    with pytest.raises(UsageError, match=text):
        choose([APART[0], APART[1], APART[1]])


def test_different_versions_are_refused():
    infos = [*APART, *(a_gpu(f"0000:0{place}:00.0", "node3", version=23004) for place in range(6))]
    with pytest.raises(UsageError, match=r"2\.32\.3 on ranks 0, 1, 2, 2\.30\.4 on ranks 3, 4, 5, 6 and 2 more"):
        choose(infos)


def test_rank_0_decides_what_is_wanted():
    staged = [a_gpu(wanted=STAGED), APART[1]]
    assert choose(staged) == TransportChoice(STAGED, False, "DISTRUN_GPU_BACKEND=staged")
    assert choose(staged[::-1]) == TransportChoice(NCCL, False)
    assert choose([a_gpu(wanted=NCCL), APART[1]]) == TransportChoice(NCCL, False)
    with pytest.raises(UsageError, match=r"DISTRUN_GPU_BACKEND=nccl cannot be: rank 1 \(on node1\) has no NCCL"):
        choose([a_gpu(wanted=NCCL), a_gpu("0000:02:00.0", **NO_NCCL)])


def test_ranks_agree(stand_ins):
    hosts = stand_ins.ThreadRanks(3)
    infos = [*APART[:2], a_gpu(host="a host with a longer name", **NO_NCCL)]
    chosen = hosts.run(lambda rank: agree(infos[rank], stand_ins.HostBackend(hosts, rank), range(3)))
    assert chosen == [choose(infos)] * 3


def test_a_report_says_what_is_there(monkeypatch):
    monkeypatch.setattr(transport_choice, "nccl_version", lambda: (23203, ""))
    wanted = GpuInfo("node1", "0000:01:00.0", "9f", True, 23203, "", True, AUTO)
    assert gpu_info("node1", "0000:01:00.0", "9f", True) == wanted
    assert gpu_info("node1", "0000:01:00.0", "9f", True, wanted=STAGED).wanted == STAGED


class TestVersion:
    @pytest.fixture(autouse=True)
    def _no_cupy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "cupy", None)
        monkeypatch.setitem(sys.modules, "cupy.cuda", None)

    def test_without_cupy(self):
        version, missing = nccl_version()
        assert version == 0
        assert "distrun[cuda13]" in missing

    @pytest.mark.parametrize("available", [True, False])
    def test_with_cupy(self, monkeypatch, available):
        cuda = ModuleType("cupy.cuda")
        cuda.nccl = SimpleNamespace(available=available, get_version=lambda: 23203)
        monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
        monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
        version, missing = nccl_version()
        assert version == (23203 if available else 0)
        assert ("nvidia-nccl" in missing) is not available
