"""Notes its first all_reduce, trains one step, and stays. `IMPORT`: modules that it imports besides torch."""

import os
import signal

import torch
from note import has_been, note

for name in os.environ.get("IMPORT", "").split():
    module = __import__(name)
    for part in os.environ.get("USE", "").split():
        getattr(module, part)  # what is loaded when it is first asked for

import torch.distributed as dist  # noqa: E402

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
note("reduced")

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2)).sum().backward()
optimizer.step()
note("trained")
while not has_been("over"):
    signal.pause()
