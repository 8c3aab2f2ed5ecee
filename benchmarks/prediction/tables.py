"""Published figures of data-parallel training on several hosts.

Taken are all figures for NCCL or its like, with batches that grow with the ranks, of the sources below for which hosts,
ranks, link and model are named, and a figure of one rank or one host with the same settings. Left out are figures of
parameter servers and of reductions on CPUs, figures with half-precision computing except where a source has no others,
figures that exist as plots only (BytePS's, PyTorch's paper), and sources whose settings differ from row to row
(aws-samples/deep-learning-models#2) or that do not name the link (horovod#547).
"""

from __future__ import annotations

from dataclasses import dataclass

RESNET50, RESNET101, INCEPTION, VGG16, BERT = 25.6, 44.7, 23.9, 138.4, 110.0
"""Millions of parameters, all of which are sent as float32."""
MODELS = {
    RESNET50: "ResNet-50",
    RESNET101: "ResNet-101",
    INCEPTION: "Inception V3",
    VGG16: "VGG-16",
    BERT: "BERT-base",
}

SOURCES = {
    "A": "Horovod's README.md of October 2017",
    "B": "Horovod's docs/benchmarks.md of October 2017",
    "C": "Horovod's docs/benchmarks.rst",
    "D": "P. Goyal and others: Accurate, Large Minibatch SGD, 2017, arXiv 1706.02677",
    "E": "Oneflow-Inc/DLPerf, reports/dlperf_benchmark_test_report_v1.md, August 2020",
    "F": "github.com/horovod/horovod/issues/779",
    "G": "github.com/horovod/horovod/issues/416",
    "H": "github.com/horovod/horovod/issues/288",
    "I": "github.com/horovod/horovod/issues/396, whose reporter asks why several hosts are so slow",
}
ASSUMED = {
    "": "nothing but what is assumed for all",
    "rate": "samples/s of one rank: those of source A on the same link",
    "hour": "samples/s of 8 GPUs: from 90 epochs of 1.281 million images in one hour, at the efficiency published; TCP",
    "RDMA": "that NCCL used the InfiniBand by RDMA",
    "batch": "the batch, and half-precision computing with float32 gradients",
    "link": "the batch, half-precision computing with float32 gradients, and the speed of its InfiniBand",
    "AWS": "the batch, and the speed of the link: that which the kind of machine has",
}
"""Inputs that a source does not give."""


@dataclass(frozen=True)
class Setup:
    """A source's figures for one program and model."""

    source: str
    """A key of `SOURCES`."""
    program: str
    model: float
    """Millions of parameters."""
    ranks_per_host: int
    link: float
    """Gbit/s of a host."""
    batch: int
    """Samples of a rank in a step."""
    base_ranks: int
    """The ranks, on one host, that all others are compared with."""
    base: float
    """Samples per second of these ranks together."""
    found: tuple[tuple[int, float], ...]
    """Hosts, and the samples per second of all their ranks; a number up to 1 is an efficiency."""
    transport: str
    """RDMA (RoCE, InfiniBand) or TCP."""
    assumed: str = ""
    """A key of `ASSUMED`."""


def _readme(transport: str, hosts: int, link: float, *columns: tuple[float, float, float]) -> list[Setup]:
    return [
        Setup("A", "Horovod", model, 4, link, 64, 1, base, ((hosts, found),), transport)
        for model, base, found in columns
    ]


def _dlperf(program: str, model: float, batch: int, *found: float) -> Setup:
    """Take the rows of 8, 16 and 32 GPUs."""
    return Setup("E", program, model, 8, 100, batch, 8, found[0], ((2, found[1]), (4, found[2])), "RDMA", "RDMA")


SETUPS = (
    *_readme("TCP", 4, 25, (INCEPTION, 134.4, 1990.7), (RESNET101, 119.4, 1685.1), (VGG16, 130.9, 1308.7)),
    *_readme("RDMA", 4, 25, (INCEPTION, 134.4, 2022.6), (RESNET101, 119.4, 1746.2), (VGG16, 130.9, 1787.4)),
    *_readme("TCP", 16, 40, (INCEPTION, 148.8, 7932.1), (RESNET101, 136.0, 7741.6), (VGG16, 149.6, 6084.2)),
    *(
        Setup(source, "Horovod", model, 4, 25, 64, 1, base, ((hosts, efficiency),), "RDMA", "rate")
        for source, hosts, vgg in (("B", 32, 0.79), ("C", 128, 0.68))
        for model, base, efficiency in ((INCEPTION, 134.4, 0.90), (RESNET101, 119.4, 0.90), (VGG16, 130.9, vgg))
    ),
    Setup("D", "Caffe2, Gloo", RESNET50, 8, 50, 32, 8, 1112.0, ((32, 0.90),), "TCP", "hour"),
    _dlperf("OneFlow", RESNET50, 128, 2969.45, 5906.55, 11711.18),
    _dlperf("TensorFlow 1, Horovod", RESNET50, 128, 2721.98, 5099.42, 9514.64),
    _dlperf("MXNet, Horovod", RESNET50, 96, 2947.72, 5684.68, 10419.21),
    _dlperf("PyTorch DDP", RESNET50, 128, 2719.07, 5307.21, 10632.33),
    _dlperf("PaddlePaddle", RESNET50, 128, 2625.38, 4895.27, 9348.17),
    _dlperf("TensorFlow 2", RESNET50, 128, 2458.74, 4849.68, 9418.44),
    _dlperf("OneFlow", BERT, 96, 1158.51, 2257.71, 4455.97),
    _dlperf("OneFlow", BERT, 64, 1138.89, 2189.30, 4310.42),
    _dlperf("OneFlow", BERT, 32, 1042.98, 1890.26, 3715.08),
    _dlperf("PaddlePaddle", BERT, 96, 868.60, 1631.36, 3167.68),
    _dlperf("PaddlePaddle", BERT, 64, 761.22, 1426.52, 2736.78),
    _dlperf("PaddlePaddle", BERT, 32, 615.12, 1116.02, 2073.60),
    _dlperf("TensorFlow 1, Horovod", BERT, 32, 806.56, 1090.20, 1923.68),
    _dlperf("MXNet, Horovod", BERT, 32, 928.03, 1136.44, 1895.50),
    Setup(
        "F",
        "Horovod",
        RESNET50,
        8,
        25,
        256,
        8,
        6679.0,
        ((2, 12828.0), (4, 23870.0), (8, 47195.0), (16, 89783.0)),
        "TCP",
        "batch",
    ),
    Setup("G", "Horovod", RESNET101, 8, 40, 64, 4, 650.92, ((2, 2379.56),), "RDMA"),
    Setup("H", "Horovod", RESNET50, 4, 100, 128, 4, 2380.0, ((2, 4419.71),), "RDMA", "link"),
    Setup(
        "I",
        "Horovod",
        RESNET50,
        8,
        25,
        64,
        8,
        2697.29,
        ((2, 2632.95), (4, 4772.04), (8, 9745.38)),
        "TCP",
        "AWS",
    ),
    Setup(
        "I",
        "Horovod",
        RESNET101,
        8,
        25,
        64,
        8,
        1523.0,
        ((2, 1529.0), (4, 2958.0), (8, 5806.0), (16, 11384.0)),
        "TCP",
        "AWS",
    ),
)
