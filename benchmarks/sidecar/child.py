"""A real training under DAF, for the sidecar's benchmark.

Prints the length of every step and the processor time it took, and the loss at the end.

usage: sidecar_child.py SECONDS BUDGET [PAUSE [THREADS]]
"""

from __future__ import annotations

import sys
import time

import torch

import daf


def main(seconds: float, budget: str, pause_seconds: float = 0.0, num_threads: int = 1) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(num_threads)
    blocks = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(8)]
    model = torch.nn.Sequential(*blocks)
    data = torch.randn(512, 256)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with daf.Session(budget=budget, bits=8, name="benchmark"):
        print("ready", flush=True)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            began, busy = time.perf_counter(), time.process_time()
            loss = (model(data) - data).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"{time.perf_counter() - began:.6f} {time.process_time() - busy:.6f}", flush=True)
            time.sleep(pause_seconds)
    print(f"loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:4]), *map(int, sys.argv[4:5]))
