"""What a codec's error is measured on: normal values, ReLU outputs, and what training steps really save."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.workloads.data import DataFolder
from benchmarks.workloads.models import build
from benchmarks.workloads.workload import Workload
from daf.kernels import Spec, coder

ELEMENTS = 1 << 20
COLS = 1024
STEPS = 20  # of training before the step whose saved tensors are taken
MIN_ELEMENTS = 1 << 14
MODELS = {"resnet18": 0.25, "gpt-small": 0.5}  # and their scale
KINDS = ("normal", "relu", "real")

Samples = dict[str, list[Tensor]]


def samples(data: DataFolder | None) -> Samples:
    """Return the tensors of each kind, all of mean square 1."""
    normal = torch.randn(ELEMENTS // COLS, COLS, generator=torch.Generator().manual_seed(0))
    real = [tensor for name, scale in MODELS.items() for tensor in saved(build(name, scale=scale, data=data))]
    kinds = {"normal": [normal], "relu": [normal.relu()], "real": real}
    return {kind: [_unit(tensor) for tensor in tensors] for kind, tensors in kinds.items()}


def saved(work: Workload) -> list[Tensor]:
    """Train a little; return the float activations that autograd saves in the step after that, each once."""
    optimizer, found = torch.optim.SGD(work.trainable(), lr=0.05), dict[int, Tensor]()

    def pack(tensor: Tensor) -> Tensor:
        is_wanted = tensor.dtype is torch.float32 and tensor.numel() >= MIN_ELEMENTS
        if is_wanted and not isinstance(tensor, nn.Parameter) and tensor._base is None and tensor.is_contiguous():
            found[tensor.data_ptr()] = tensor.detach().clone()
        return tensor

    for number in range(STEPS):
        optimizer.zero_grad()
        work.loss(work.model, work.make_batch(number)).backward()
        optimizer.step()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = work.loss(work.model, work.make_batch(STEPS))
    del loss
    return [tensor for tensor in found.values() if tensor.isfinite().all() and tensor.any()]


def _unit(tensor: Tensor) -> Tensor:
    return tensor / tensor.square().mean().sqrt()


def codec_error(spec: Spec, tensors: list[Tensor]) -> float:
    """Mean squared error over all elements of all tensors."""
    total = 0.0
    for x in tensors:
        rows = x.shape[-2] if x.dim() == 4 else 0
        code = coder(spec, "float32", x.numel(), x.shape[-1], rows)
        total += code.distortion(x.data_ptr(), x.numel())[-1] * x.numel()
    return total / sum(x.numel() for x in tensors)
