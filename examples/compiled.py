"""torch.compile under DAF: `PYTORCH_ALLOCATOR=daf python examples/compiled.py`."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10))
step = torch.compile(model, backend="aot_eager")  # needs no C++ compiler; the default backend does
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    loss = nn.functional.cross_entropy(step(torch.randn(512, 256)), torch.randint(10, (512,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}")
