"""`sync()` of a state keeps a copy, to which `restore()` goes back, and divides what is left for a sampler."""

import horovod.torch as hvd
import torch

hvd.init()
model = torch.nn.Linear(2, 2)
state = hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1), batch=20, epoch=10)
state.sync()
before = model.weight.detach().clone()
with torch.no_grad():
    model.weight.add_(1)
state.batch = 21
state.restore()
print(hvd.rank(), "goes back to batch", state.batch, torch.equal(before, model.weight))

sampler = hvd.elastic.ElasticSampler(list(range(8 * hvd.size())), shuffle=True)
state = hvd.elastic.TorchState(sampler=sampler)
state.sync()
sampler.set_epoch(1)
for batch in range(3):
    sampler.record_batch(batch, 2)
state.commit()
state.sync()
print(hvd.rank(), "has", len(sampler), "samples left,", sampler.processed_num, "are processed")
