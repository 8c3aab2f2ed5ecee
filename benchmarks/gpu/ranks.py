"""GPUs, inside a rank: packing gradients into a buffer, and a training step beside DDP's.

Work on the device is timed with CUDA events, on a stream that has no other work, with several runs between two events.
With `--device cpu` the same programs run without a GPU: not to measure anything, but to see that they run.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed

import distrun.torch
from benchmarks.gpu.tables import ALONE, DDP, DISTRUN, FOREACH, MEMCPY, ONE_BY_ONE
from benchmarks.support.measuring import Rounds, Summary, summary
from distrun.tensor_fusion.device_packing import Piece
from distrun.torch.gradients.reducer import GradientReducer, Settings

SLOT = 16
"""The alignment of gradients in bytes."""
Programs = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Transformer:
    """A language model like GPT-2 small, and its batch of training data."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    words: int = 50257
    length: int = 512
    batch: int = 8

    def make(self) -> torch.nn.Module:
        """Return the model, with the same weights on every rank."""
        torch.manual_seed(1)
        layer = torch.nn.TransformerEncoderLayer(
            self.width, self.heads, 4 * self.width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        return torch.nn.Sequential(
            torch.nn.Embedding(self.words, self.width),
            torch.nn.TransformerEncoder(layer, self.layers, enable_nested_tensor=False),
            torch.nn.Linear(self.width, self.words),
        )


def resnet50() -> Iterator[tuple[int, ...]]:
    """Return the shapes of the 161 parameters of ResNet-50."""
    yield from ((64, 3, 7, 7), (64,), (64,))
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from ((width, channels, 1, 1), (width,), (width,))
            yield from ((width, width, 3, 3), (width,), (width,))
            yield from ((4 * width, width, 1, 1), (4 * width,), (4 * width,))
            if block == 0:
                yield from ((4 * width, channels, 1, 1), (4 * width,), (4 * width,))
            channels = 4 * width
    yield from ((1000, 2048), (1000,))


# Timing ---------------------------------------------------------------------------------------------------------------


def seconds_of(program: Callable[[], object], runs: int, device: torch.device) -> float:
    """Return the seconds of a run, averaged over `runs` runs that follow each other."""
    program()  # what the program before has left in caches does not count
    if device.type == "cpu":
        begun = time.perf_counter()
        for _ in range(runs):
            program()
        return (time.perf_counter() - begun) / runs
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    start.record()
    for _ in range(runs):
        program()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1000 / runs


def by_turns(programs: Programs, rounds: Rounds, device: torch.device) -> dict[str, Summary]:
    """Measure blocks of runs of each program, by turns."""
    for program in programs.values():
        for _ in range(rounds.warmup):
            program()
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds.count):
        for name, program in programs.items():
            distrun.torch.barrier()
            seconds[name].append(seconds_of(program, rounds.turn, device))
    return {name: summary(blocks) for name, blocks in seconds.items()}


# Packing --------------------------------------------------------------------------------------------------------------


def packing(device: torch.device, rounds: Rounds) -> dict[str, dict[str, Summary]]:
    """Measure packing the gradients of ResNet-50 into one buffer."""
    return {
        "ResNet-50, float32": by_turns(_packers(device, torch.float32, torch.float32), rounds, device),
        "float32 into bfloat16, scaled": by_turns(_packers(device, torch.float32, torch.bfloat16), rounds, device),
    }


def _packers(device: torch.device, source: torch.dtype, target: torch.dtype) -> Programs:
    gradients = [torch.randn(shape, device=device).to(source) for shape in resnet50()]
    per_slot = SLOT // target.itemsize
    counts = [-(-gradient.numel() // per_slot) * per_slot for gradient in gradients]
    buffer = torch.zeros(sum(counts), device=device, dtype=target)
    slots = torch.split(buffer, counts)
    views = [slot[: each.numel()].view(each.shape) for slot, each in zip(slots, gradients, strict=True)]
    whole = torch.cat([gradient.reshape(-1) for gradient in gradients])
    factor = 1.0 if source is target else 0.5

    def memcpy() -> None:
        buffer[: whole.numel()].copy_(whole)

    def one_by_one() -> None:
        for view, gradient in zip(views, gradients, strict=True):
            view.copy_(gradient)
            if factor != 1.0:
                view.mul_(factor)

    def foreach() -> None:
        torch._foreach_copy_(views, gradients)
        if factor != 1.0:
            torch._foreach_mul_(views, factor)

    programs: Programs = {MEMCPY: memcpy, ONE_BY_ONE: one_by_one, FOREACH: foreach}
    if device.type == "cuda":
        programs[DISTRUN] = _distrun_packer(gradients, views, factor)
    return programs


def _distrun_packer(gradients: list[torch.Tensor], views: list[torch.Tensor], factor: float) -> Callable[[], object]:
    from distrun.runtime.world import world

    packer = world.engine().gpu().packer
    names = [str(tensors[0].dtype).removeprefix("torch.") for tensors in (gradients, views)]

    def pack() -> None:
        pieces = [Piece(one.data_ptr(), to.data_ptr(), one.numel()) for one, to in zip(gradients, views, strict=True)]
        packer.copy(pieces, names[0], names[1], factor, torch.cuda.current_stream().cuda_stream)

    pack()
    for view, gradient in zip(views, gradients, strict=True):
        torch.testing.assert_close(view, (gradient * factor).to(view.dtype), rtol=0, atol=0)
    return pack


# A step ---------------------------------------------------------------------------------------------------------------


def step(device: torch.device, shape: Transformer, rounds: Rounds) -> dict[str, dict[str, Summary]]:
    """Measure training the transformer in bfloat16 (autocast) by AdamW: alone, with DDP and with distrun."""
    makers = {ALONE: _alone, DDP: _ddp, DISTRUN: _distrun}
    if device.type == "cpu":
        del makers[DDP]  # has no NCCL there
    programs = {name: _training(device, shape, make) for name, make in makers.items()}
    return {f"{shape.layers} x {shape.width}": by_turns(programs, rounds, device)}


Maker = Callable[[torch.nn.Module], tuple[torch.nn.Module, torch.optim.Optimizer]]


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    device = next(model.parameters()).device
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")


def _alone(model: torch.nn.Module) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    return model, _optimizer(model)


def _ddp(model: torch.nn.Module) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), _optimizer(model)


def _distrun(model: torch.nn.Module) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    optimizer = distrun.torch.DistributedOptimizer(_optimizer(model), model.named_parameters())
    if distrun.torch.size() == 1:  # a world of one reduces nothing; here it shall, as DDP does
        names = {parameter: name for name, parameter in model.named_parameters()}
        vars(optimizer)["_reducer"] = GradientReducer("alone", optimizer, names, Settings())
    return model, optimizer


def _training(device: torch.device, shape: Transformer, make: Maker) -> Callable[[], object]:
    model, optimizer = make(shape.make().to(device))
    torch.manual_seed(100 + distrun.torch.rank())
    words = torch.randint(shape.words, (shape.batch, shape.length + 1), device=device)

    def train() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            scores = model(words[:, :-1])
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return train


# The program ----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run the chosen measurement; rank 0 writes the result to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("subject", choices=("packing", "step"))
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    distrun.torch.init()
    device = torch.device(options.device)
    tiny = Transformer(layers=2, width=32, heads=2, words=100, length=8, batch=2)
    rounds = Rounds(20, turn=20) if options.subject == "packing" else Rounds(10, turn=5)
    rounds = rounds.shortened() if options.quick else rounds
    if options.subject == "packing":
        results = packing(device, rounds)
    else:
        if device.type == "cuda":
            torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
        results = step(device, Transformer() if device.type == "cuda" else tiny, rounds)
    if distrun.torch.rank() == 0:
        options.result.write_text(
            json.dumps({row: {name: asdict(each) for name, each in found.items()} for row, found in results.items()})
        )
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    main()
