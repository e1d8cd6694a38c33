"""Accelerate: open a session around the loop and log its figures: `accelerate launch examples/accelerate_loop.py`."""

import torch
from accelerate import Accelerator
from torch import nn

import daf

accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir="build/accelerate")
accelerator.init_trackers("daf-example")
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))

with daf.Session(budget="1GiB", ratio=8) as session:
    for step in range(6):
        loss = nn.functional.cross_entropy(model(torch.randn(512, 256)), torch.randint(10, (512,)))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        daf.integrations.log(accelerator, step=step)
accelerator.end_training()
print(session)
