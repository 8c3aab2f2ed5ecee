"""A parameter that has no gradient goes on by its momentum and decay, as in one process whose gradient is zero."""

import horovod.torch as hvd
import torch

hvd.init()
always, sometimes = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([always, sometimes], lr=0.1, weight_decay=0.5, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=[("always", always), ("sometimes", sometimes)])

alone = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))]
plain = torch.optim.SGD(alone, lr=0.1, weight_decay=0.5, momentum=0.9)

# In steps 0, 1 and 5 no rank has a gradient for it, in step 4 rank 1 only; every second step goes on adding up.
for step in range(6):
    if step % 2 == 0:
        optimizer.zero_grad(set_to_none=step > 2)
        plain.zero_grad()
    loss = (hvd.rank() + 1) * always.sum()
    if step in (2, 3) or (step == 4 and hvd.rank() == 1):
        loss = loss + 4 * sometimes.sum()
    loss.backward()
    average = {2: 4.0, 3: 4.0, 4: 2.0}.get(step, 0.0)
    (1.5 * alone[0].sum() + average * alone[1].sum()).backward()
    if step == 3:
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        optimizer.step()
    plain.step()
    torch.testing.assert_close(always, alone[0])
    torch.testing.assert_close(sometimes, alone[1])
