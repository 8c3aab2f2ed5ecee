"""Groups that are reduced again and again, while their tensors change places, shapes and types under the same name."""

import random

import playing
import torch
from checking import check, run_checks

import distrun.torch as hvd
from distrun.torch import on_gpu

hvd.init()
playing.play(lambda tensor: tensor.dtype is not torch.float64)
RANK, SIZE = hvd.rank(), hvd.size()
SHAPES = [(4,), (2, 2), (64,), (8, 8), (0,), ()]


class Group:
    """Some tensors of one name, and how the next step may find them."""

    def __init__(self, chance, name):
        self._chance, self._name, self._step = chance, name, 0
        self.tensors = []
        self.renew()

    def _new(self, dtype):
        return torch.empty(self._chance.choice(SHAPES), dtype=dtype)

    def renew(self):
        dtype = self._chance.choice([torch.float32, torch.float32, torch.bfloat16, torch.int32])
        self.tensors.clear()  # first, so that the allocator may give their memory to the next ones
        self.tensors += [self._new(dtype) for _ in range(self._chance.randint(1, 4))]

    def other_memory(self):
        index = self._chance.randrange(len(self.tensors))
        tensor = self.tensors[index]
        tensor.data = torch.empty_like(tensor.data)

    def other_shape(self):
        for tensor in self.tensors:
            tensor.data = tensor.data.reshape(-1)

    def other_type(self):
        if self.tensors[0].dtype in (torch.float32, torch.int32):
            other = torch.int32 if self.tensors[0].dtype is torch.float32 else torch.float32
            self.tensors = [tensor.view(other) for tensor in self.tensors]

    def other_layout(self):
        self.tensors = [tensor.t() if tensor.ndim == 2 else tensor for tensor in self.tensors]

    def parameters(self):
        if self.tensors[0].dtype is torch.float32:
            self.tensors = [torch.nn.Parameter(tensor.detach()) for tensor in self.tensors]

    def one_on_the_cpu(self):
        self.tensors[-1] = torch.empty(3, dtype=torch.float64)

    def reduce(self):
        self._step += 1
        op = self._chance.choice([hvd.Sum, hvd.Sum, hvd.Average])
        op = hvd.Sum if self.tensors[0].dtype is torch.int32 else op
        factor = self._chance.choice([1.0, 1.0, 1.0, 0.5]) if self.tensors[0].dtype is torch.float32 else 1.0
        values = [1 + (self._step + index) % 7 for index in range(len(self.tensors))]
        with torch.no_grad():
            for tensor, value in zip(self.tensors, values, strict=True):
                tensor.fill_(value * (RANK + 1))
        results = hvd.grouped_allreduce_(list(self.tensors), name=self._name, op=op, prescale_factor=factor)
        total = SIZE * (SIZE + 1) / 2 / (SIZE if op is hvd.Average else 1) * factor
        for tensor, result, value in zip(self.tensors, results, values, strict=True):
            assert result is tensor
            assert torch.equal(result.detach(), torch.full_like(result, value * total)), (self._step, tensor, value)


@check
def what_is_reduced_is_what_is_given():
    chance = random.Random(5)  # the same on all ranks
    groups = [Group(chance, f"group {index}") for index in range(3)]
    changes = ["renew", "other_memory", "other_shape", "other_type", "other_layout", "parameters", "one_on_the_cpu"]
    for _ in range(150):
        group = chance.choice(groups)
        if chance.random() < 0.5:
            group.renew() if group.tensors[-1].dtype is torch.float64 else getattr(group, chance.choice(changes))()
        group.reduce()


@check
def nothing_is_kept_alive_and_no_more_groups_than_the_limit():
    limit, on_gpu._LIMIT = on_gpu._LIMIT, len(on_gpu._groups) + 2
    for index in range(5):
        hvd.allreduce_(torch.ones(3), name=f"one of many {index}")
    assert len(on_gpu._groups) == on_gpu._LIMIT
    on_gpu._LIMIT = limit


run_checks()
