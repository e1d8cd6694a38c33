"""A plain training loop that does not name DAF: `PYTORCH_ALLOCATOR=daf python examples/plain.py`."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
weights = torch.randn(256, 10)

for _ in range(20):
    x = torch.randn(512, 256)
    loss = nn.functional.cross_entropy(model(x), (x @ weights).argmax(1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}")
