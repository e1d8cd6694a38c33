"""Train a small GPT on the characters of Python's own standard library: plain torch, with no word of DAF in it.

The demo runs this file three times, the second and third with PYTORCH_ALLOCATOR=daf in the environment. It writes one
JSON line a step, and one at the end, to the file descriptor given by --report.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import sysconfig
import time
from typing import IO

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_CHARACTERS = 128  # ASCII; whatever else the sources hold becomes a space


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))  # type: ignore[no-any-return]


class SmallGPT(nn.Module):
    def __init__(self, width: int, num_heads: int, num_layers: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(NUM_CHARACTERS, width)
        self.position = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, NUM_CHARACTERS))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.token(tokens) + self.position))
        return logits


def standard_library_text(max_characters: int) -> Tensor:
    """Return the characters of the standard library's sources as one tensor of token ids."""
    parts, total = [], 0
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_bytes())
        total += len(parts[-1])
        if total >= max_characters:
            break
    codes = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8).long()
    return torch.where(codes < NUM_CHARACTERS, codes, ord(" "))[:max_characters]


def memory_bytes(key: str) -> int:
    """Return VmRSS or VmHWM of this process; 0 where the system does not tell."""
    try:
        text = pathlib.Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(text.split(f"{key}:")[1].split()[0]) * 1024


def reset_peak() -> int:
    """Start a new peak; return what is resident now."""
    with contextlib.suppress(OSError):  # not Linux: the peak then counts from the start of the process
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    return memory_bytes("VmRSS")


def used_on_device() -> int:
    """Return what is taken of the CUDA device: allocators keep what they once took, so this is as good as a peak."""
    free_bytes, all_bytes = torch.cuda.mem_get_info()
    return int(all_bytes - free_bytes)


def count_saved_bytes(model: nn.Module, tokens: Tensor, targets: Tensor) -> int:
    """Return the bytes that autograd keeps between forward and backward, each storage once, parameters not counted."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    return sum(saved.values())


def train(arguments: argparse.Namespace, report: IO[str]) -> None:
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # torch imports 145 MiB with its first optimizer
    baseline_bytes = reset_peak() if arguments.device == "cpu" else used_on_device()
    torch.manual_seed(0)
    text = standard_library_text(1_000_000)
    held_out, text = text[:100_000], text[100_000:]
    device = torch.device(arguments.device)
    model = SmallGPT(arguments.width, 6, arguments.layers, arguments.context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch(source: Tensor) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(source) - arguments.context - 1, (arguments.batch, 1))
        window = source[starts + torch.arange(arguments.context + 1)]
        return window[:, :-1].to(device), window[:, 1:].to(device)

    step_seconds = []
    for step in range(arguments.steps):
        started = time.perf_counter()
        tokens, targets = batch(text)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step_seconds.append(time.perf_counter() - started)
        print(json.dumps({"step": step + 1, "loss": loss.item()}), file=report, flush=True)
    peak_bytes = (memory_bytes("VmHWM") if device.type == "cpu" else used_on_device()) - baseline_bytes
    torch.manual_seed(1)
    with torch.no_grad():
        losses = [F.cross_entropy(model(x).flatten(0, 1), y.flatten()) for x, y in (batch(held_out) for _ in range(4))]
    result = {
        "held_out_loss": torch.stack(losses).mean().item(),
        "peak_bytes": peak_bytes,
        "median_step_seconds": sorted(step_seconds)[len(step_seconds) // 2],
        "saved_bytes": count_saved_bytes(model, *batch(text)) if arguments.count_saved else 0,
    }
    print(json.dumps(result), file=report, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", default=os.environ.get("DAF_DEVICE", "cpu"), help="cpu or cuda")
    parser.add_argument("--report", type=int, default=1, help="file descriptor to write JSON lines to")
    parser.add_argument("--count-saved", action="store_true", help="count what autograd saves, in one more step")
    arguments = parser.parse_args()
    with os.fdopen(arguments.report, "w", closefd=arguments.report > 2) as report:
        train(arguments, report)


if __name__ == "__main__":
    main()
