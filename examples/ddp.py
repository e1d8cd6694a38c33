"""Two processes with DDP: `PYTORCH_ALLOCATOR=daf torchrun --standalone --nproc_per_node=2 examples/ddp.py`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import daf

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    loss = nn.functional.cross_entropy(model(torch.randn(256, 256)), torch.randint(10, (256,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {dist.get_rank()}: {daf.active()}")
dist.destroy_process_group()
