"""Two processes with FSDP2: `PYTORCH_ALLOCATOR=daf torchrun --standalone --nproc_per_node=2 examples/fsdp2.py`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import daf

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    loss = nn.functional.cross_entropy(model(torch.randn(256, 256)), torch.randint(10, (256,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {dist.get_rank()}: {daf.active()}")
dist.destroy_process_group()
