"""DAF for a part of a script: `python examples/session.py`."""

import torch
from torch import nn

import daf

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with daf.Session(budget="1GiB", ratio=8) as session:
    for _ in range(10):
        loss = nn.functional.cross_entropy(model(torch.randn(2048, 256)), torch.randint(10, (2048,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print(session)
