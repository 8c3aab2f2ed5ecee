"""The real cupy.cuda.nccl, where it is installed, has all that distrun uses."""

from __future__ import annotations

from typing import Any

import pytest

from distrun.runtime.gpu.nccl.library import ITEMSIZES, OPS


@pytest.mark.gate
class TestConformance:
    """The names that distrun uses are there, and mean what it takes them for."""

    @pytest.fixture
    def real(self) -> Any:
        module = pytest.importorskip("cupy.cuda.nccl", reason="cupy is not installed", exc_type=ImportError)
        if not module.available:
            pytest.skip("cupy finds no NCCL")
        return module

    def test_constants(self, real: Any) -> None:
        ops = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}  # ncclRedOp_t of nccl.h
        types = {
            **{"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5},
            **{"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9},
        }  # ncclDataType_t
        assert {name: int(getattr(real, f"NCCL_{name.upper()}")) for name in ops} == ops
        assert {name: int(getattr(real, f"NCCL_{name.upper()}")) for name in types} == types
        assert set(OPS) == set(ops)
        assert set(ITEMSIZES) == set(types)

    def test_names(self, real: Any) -> None:
        for name in ("get_unique_id", "get_version", "groupStart", "groupEnd", "NcclCommunicator", "NcclError"):
            assert hasattr(real, name)
        assert issubclass(real.NcclError, RuntimeError)
        calls = ("allReduce", "reduce", "reduceScatter", "broadcast", "allGather", "send", "recv")
        for name in (*calls, "check_async_error", "abort", "destroy"):
            assert hasattr(real.NcclCommunicator, name)
        assert real.get_version() >= 21000
