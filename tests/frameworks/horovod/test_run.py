"""`horovod.run` calls a function on ranks that find `horovod`, too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from distrun.contract import horovod as mode

pytest.importorskip("torch")


@pytest.fixture
def horovod(monkeypatch) -> Iterator[object]:
    monkeypatch.syspath_prepend(mode.FOLDER)
    yield importlib.import_module("horovod")
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        del sys.modules[name]


@pytest.mark.gate
def test_results_come_back_by_rank(horovod, capfd):
    def train(factor, offset=0):
        import os

        import horovod.torch as hvd
        import torch

        hvd.init()
        total = hvd.allreduce(torch.tensor([float(hvd.rank())]), op=hvd.Sum)
        return factor * hvd.rank() + offset, total.item(), os.environ["HOROVOD_RANK"]

    results = horovod.run(train, (10,), {"offset": 1}, num_proc=2, use_gloo=True, network_interfaces=["lo"])
    assert results == [(1, 1.0, "0"), (11, 1.0, "1")]
    with pytest.raises(TypeError):
        horovod.run(train, np=2, verbose=0)
