"""A real training run for the page to watch: `python training.py BUDGET`. Small, so that it steps often.

It trains until it gets SIGUSR1, and then ends as a run should.
"""

from __future__ import annotations

import signal
import sys
import threading

import torch

import daf

WIDTH, BATCH = 256, 1024


def main(budget: str) -> None:
    done = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: done.set())
    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(WIDTH)) for _ in range(4)
    ]
    model = torch.nn.Sequential(*blocks, torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with daf.Session(budget=budget, bits=4, name="browser-test"):
        while not done.wait(0.02):  # the tests share two cores with the browser
            x, y = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
