"""Operations that repeat under their names, while their tensors change places, shapes and types.

With the argument `cpu`, on the CPU.
"""

import random
import sys
import weakref

import numpy as np
import playing
import torch
from checking import check, run_checks

import distrun.torch as hvd
from distrun.torch import repeated

hvd.init()
ON_CPU = sys.argv[1:] == ["cpu"]
if not ON_CPU:
    playing.play(lambda tensor: tensor.dtype is not torch.float64)
RANK, SIZE = hvd.rank(), hvd.size()
SHAPES = [(4,), (2, 2), (64,), (8, 8), (0,), ()]


class Group:
    """Some tensors of one name, and how the next step may find them."""

    def __init__(self, chance, name):
        self._chance, self._name, self._step = chance, name, 0
        self.tensors = []
        self._results, self._others = [], []  # with what they must still contain
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

    def act(self):
        """Carry out an operation of any kind."""
        self._step += 1
        getattr(self, self._chance.choice(["reduce", "reduce", "broadcast", "move_rows"]))()

    def _fill(self):
        """Give all tensors a value, times the rank + 1, and return the values."""
        values = [1 + (self._step + index) % 7 for index in range(len(self.tensors))]
        with torch.no_grad():
            for tensor, value in zip(self.tensors, values, strict=True):
                tensor.fill_(value * (RANK + 1))
        return values

    def _check(self, values, results, wanted):
        """Check results in new memory, that those before are still what they were, and that nothing was written into
        the tensors, and into memory that belongs to others since."""
        for tensor, value in zip(self.tensors, values, strict=True):
            assert torch.equal(tensor.detach(), torch.full_like(tensor, value * (RANK + 1)))
        with torch.no_grad():
            for tensor in self.tensors:
                tensor.fill_(99)  # which the results do not notice
        now = [(result.detach(), expected) for result, expected in zip(results, wanted, strict=True)]
        for result, expected in [*now, *self._results, *self._others]:
            assert torch.equal(result, expected), (self._step, result, expected)
        self._results, self._others = now, []
        if self._chance.random() < 0.5:
            self._results = []
            del now, results  # their memory is free, and the next tensors may get it
            self._others = [(torch.full_like(each, 77), torch.full_like(each, 77)) for each in wanted]

    def broadcast(self):
        root = self._chance.randrange(SIZE)
        is_in_place = self._chance.random() < 0.5
        values = self._fill()
        function = hvd.broadcast_ if is_in_place else hvd.broadcast
        names = [f"{self._name}.{index}" for index in range(len(values))]
        results = [function(tensor, root, name=name) for tensor, name in zip(self.tensors, names, strict=True)]
        wanted = [torch.full_like(each, value * (root + 1)) for each, value in zip(self.tensors, values, strict=True)]
        if not is_in_place:
            self._check(values, results, wanted)
            return
        for tensor, result, expected in zip(self.tensors, results, wanted, strict=True):
            assert result is tensor
            assert torch.equal(result.detach(), expected)

    def move_rows(self):
        all_tensors = self.tensors
        self.tensors = [each for each in all_tensors if each.ndim and each.shape[0] % SIZE == 0]
        values = self._fill()
        if self.tensors:
            kind = self._chance.choice(["allgather", "reducescatter", "alltoall"])
            plain = [each.detach() for each in self.tensors]
            parts = [each.chunk(SIZE) if kind == "alltoall" else [each] * SIZE for each in plain]
            wanted = [
                torch.cat([torch.full_like(part, value * (rank + 1)) for rank, part in enumerate(those)])
                for those, value in zip(parts, values, strict=True)
            ]
            if kind == "allgather":
                results = hvd.grouped_allgather(list(self.tensors), name=self._name)
            elif kind == "reducescatter":
                results = hvd.grouped_reducescatter(list(self.tensors), name=self._name, op=hvd.Sum)
                wanted = [
                    torch.full_like(each[: len(each) // SIZE], value * SIZE * (SIZE + 1) / 2)
                    for each, value in zip(self.tensors, values, strict=True)
                ]
            else:
                results = [hvd.alltoall(each, name=f"{self._name}.{at}") for at, each in enumerate(self.tensors)]
            self._check(values, results, wanted)
        self.tensors = all_tensors

    def reduce(self):
        op = self._chance.choice([hvd.Sum, hvd.Sum, hvd.Average])
        op = hvd.Sum if self.tensors[0].dtype is torch.int32 else op
        factor = self._chance.choice([1.0, 1.0, 1.0, 0.5]) if self.tensors[0].dtype is torch.float32 else 1.0
        values = self._fill()
        is_in_place = self._chance.random() < 0.5
        function = hvd.grouped_allreduce_ if is_in_place else hvd.grouped_allreduce
        results = function(list(self.tensors), name=self._name, op=op, prescale_factor=factor)
        total = SIZE * (SIZE + 1) / 2 / (SIZE if op is hvd.Average else 1) * factor
        wanted = [torch.full_like(each, value * total) for each, value in zip(self.tensors, values, strict=True)]
        if not is_in_place:
            self._check(values, results, wanted)
            return
        for tensor, result, expected in zip(self.tensors, results, wanted, strict=True):
            assert result is tensor
            assert torch.equal(result.detach(), expected), (self._step, tensor, expected)


@check
def what_travels_is_what_is_given():
    chance = random.Random(5)  # the same on all ranks
    groups = [Group(chance, f"group {index}") for index in range(3)]
    changes = ["renew", "other_memory", "other_shape", "other_type", "other_layout", "parameters", "one_on_the_cpu"]
    for _ in range(300):
        group = chance.choice(groups)
        if chance.random() < 0.5:
            group.renew() if group.tensors[-1].dtype is torch.float64 else getattr(group, chance.choice(changes))()
        group.act()
    assert any(type(known) is repeated.Repeated for known in repeated._kept.values())


@check
def other_views_at_the_same_address_are_told_apart():
    whole, other = torch.empty(64), torch.zeros(2)
    half = whole[:32]
    for view in (half, half, half, whole[::2], torch._neg_view(half), half, whole[:16], half.view(2, 16)):
        whole.fill_(1)
        sign = -1 if view.is_neg() else 1
        result, _ = hvd.grouped_allreduce([view, other], name="views", op=hvd.Sum)
        assert torch.equal(result, torch.full_like(result, sign * SIZE))
        hvd.grouped_allreduce_([view, other], name="views in place", op=hvd.Sum)
        assert torch.equal(view, torch.full_like(view, sign * SIZE))
        assert whole.sum() == 64 + view.numel() * (SIZE - 1)


@check
def nothing_is_kept_alive_and_no_more_groups_than_the_limit():
    limit, repeated.REQUESTS = repeated.REQUESTS, len(repeated._kept) + 2
    for index in range(5):
        arrays = [np.ones(3, np.float32), np.ones(4, np.float32)]
        tensors = list(map(torch.from_numpy, arrays))
        for total in (SIZE, SIZE**2, SIZE**3):
            hvd.grouped_allreduce_(tensors, name=f"one of many {index}", op=hvd.Sum)
            assert [array.tolist() for array in arrays] == [[total] * 3, [total] * 4]
        assert type(list(repeated._kept.values())[-1]) is repeated.Repeated
        memory = list(map(weakref.ref, arrays))
        del arrays, tensors
        assert [each() for each in memory] == [None, None]
    assert len(repeated._kept) == repeated.REQUESTS
    repeated.REQUESTS = limit


run_checks()
