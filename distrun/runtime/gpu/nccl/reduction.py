"""Reductions in NCCL's terms: the element type and the operator that have the same meaning as on the host."""

from __future__ import annotations

from typing import NamedTuple

from distrun.contract.settings import QUANTISED
from distrun.runtime.operations.reduction import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from distrun.runtime.operations.request import Request

BYTES = "uint8"
"""NCCL's element type for data that is only copied."""

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
_PARTS = {"complex64": "float32", "complex128": "float64"}  # the type of the two parts of a complex number

_OPS: dict[ReduceOp, str] = {Average: "avg", Sum: "sum", Min: "min", Max: "max", Product: "prod"}
_BOOLEAN_OPS: dict[ReduceOp, str] = {Average: "max", Sum: "max", Max: "max", Min: "min", Product: "min"}


class NcclReduction(NamedTuple):
    """A reduction in NCCL's terms."""

    dtype: str
    """NCCL's element type in memory."""
    wire: str
    """NCCL's element type on the wire, for the reduction."""
    units: int
    """The number of NCCL's elements in one element of the request: 2 for complex numbers."""
    op: str
    prescale: float
    postscale: float

    @property
    def is_cast(self) -> bool:
        """Whether elements are converted to be reduced."""
        return self.dtype != self.wire

    @property
    def is_plain(self) -> bool:
        """Whether elements are neither converted nor scaled."""
        return self.dtype == self.wire and self.prescale == 1.0 == self.postscale


def nccl_reduction(request: Request, wire: str = "") -> NcclReduction | None:
    """Return a request's reduction in NCCL's terms, or None if the result would differ in meaning from the host's.

    `wire` is the type on the wire, "" for the elements' own. NCCL cannot add quantised elements, which have scales. So
    those that `gpu.quantised` does not exchange are sent in their own type.
    """
    dtype, op = request.dtype, request.op
    if op is Adasum:
        return None
    if dtype in _FLOATS:
        sent = dtype if not wire or wire in QUANTISED else wire
        return NcclReduction(dtype, sent, 1, _OPS[op], request.prescale, request.postscale)
    if dtype in _PARTS and op in (Sum, Average):
        return NcclReduction(_PARTS[dtype], _PARTS[dtype], 2, _OPS[op], request.prescale, request.postscale)
    if dtype == "bool":  # scale factors have no effect on booleans
        return NcclReduction(BYTES, BYTES, 1, _BOOLEAN_OPS[op], 1.0, 1.0)
    if dtype in _INTEGERS and op is not Average and request.prescale == request.postscale == 1.0:
        return NcclReduction(dtype, dtype, 1, _OPS[op], 1.0, 1.0)
    return None


_COPIES = ("broadcast", "allgather", "alltoall")


def is_supported(request: Request) -> bool:
    """Return whether NCCL can execute `request` with the same meaning as on the host. Other requests are staged."""
    kind, dtype = request.kind, request.dtype
    if kind in ("allreduce", "reducescatter"):
        return (dtype in _FLOATS and request.op is not Adasum) or nccl_reduction(request) is not None
    return kind in _COPIES
