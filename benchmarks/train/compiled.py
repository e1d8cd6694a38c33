"""A method whose loss is compiled by torch.compile, and what autograd then holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.method import Method, StorageMeter
from benchmarks.workloads.workload import Batch, Workload


def compiled(workload: Workload) -> Workload:
    """Return the workload with model and loss in one graph."""
    return replace(workload, loss=torch.compile(workload.loss))


class CompiledMethod(Method):
    """`method`, whose saved bytes are counted in the graph: hooks of a meter would have torch compile anew, without
    those that are measured."""

    def __init__(self, method: Method) -> None:
        super().__init__(method.workload)
        self._method = method

    def forward(self, batch: Batch) -> Tensor:
        return self._method.forward(batch)

    def exact(self) -> AbstractContextManager[Any]:
        return self._method.exact()

    def saved_bytes(self, batch: Batch) -> int:
        before_bytes = self._stored_bytes()
        loss = self.forward(batch)
        stored_bytes = self._stored_bytes() - before_bytes
        meter = StorageMeter(self.workload.model)
        for node in _nodes(loss.grad_fn):
            for tensor in getattr(node, "saved_tensors", ()):
                if tensor is not None:
                    meter.add(tensor)
        return stored_bytes + meter.total_bytes

    def _stored_bytes(self) -> int:
        """What DAF holds behind handles: planes, and copies of what is kept exact."""
        session = getattr(self._method, "session", None)
        if session is None:
            return 0
        ledger = session.engine.ledger
        ledger.settle()
        return int(session.stats()["plane_bytes"]) + int(ledger.passed_bytes) + int(ledger.exact_bytes)

    def step_ended(self) -> None:
        self._method.step_ended()

    def stats(self) -> dict[str, Any]:
        return self._method.stats()


def _nodes(root: Any) -> Iterator[Any]:
    ways, seen = [root], {root}
    while ways:
        node = ways.pop()
        yield node
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                ways.append(below)
