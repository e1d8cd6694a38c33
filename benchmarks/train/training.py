"""One training in a process of its own: what a worker can be asked for. Memory counts from after the imports."""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.peers.method import gradient
from benchmarks.tools.process_memory import resident_bytes, resident_peak_bytes, restart_peak
from benchmarks.train import methods
from benchmarks.train.compiled import CompiledMethod, compiled
from benchmarks.train.worker import Job
from benchmarks.workloads import models, transformer
from benchmarks.workloads.data import DataFolder
from benchmarks.workloads.workload import Batch, Options


def options_of(job: Job) -> Options:
    return Options(
        batch_size=job.batch_size,
        seq_len=job.seq_len,
        scale=job.scale,
        dropout=job.dropout,
        data=DataFolder(job.data) if job.data else None,
    )


class Training:
    """A model under one method. DAF's session is opened before the model is built, as its users do."""

    def __init__(self, job: Job) -> None:
        self._import(job)
        self._recipe = models.recipe(job.model, options_of(job))
        self._num_steps = 0
        self.baseline_bytes = resident_bytes()
        restart_peak()
        session = methods.open_session(job, self.baseline_bytes)
        self.workload = self._recipe.build()
        if job.is_compiled:
            self.workload = compiled(self.workload)
        self.method = methods.make(job.method, self.workload, session)
        if job.is_compiled:
            self.method = CompiledMethod(self.method)
        self._optimizer = self.workload.optimizer()

    @staticmethod
    def _import(job: Job) -> None:
        if job.threads:
            torch.set_num_threads(job.threads)
        if models.MODELS[job.model].__module__ == transformer.__name__:
            transformer.import_all()
        torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # torch imports 75 to 145 MiB with its first optimizer

    def step(self) -> dict[str, float]:
        """Train one step on a batch of its own; return its seconds, those of processor time, and its loss."""
        self._num_steps += 1
        batch = self.workload.make_batch(self._num_steps)
        began, cpu_began = time.perf_counter(), time.process_time()
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.method.forward(batch)
        loss.backward()
        self._optimizer.step()
        self.method.step_ended()
        return {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu_began,
            "loss": loss.item(),
        }

    def peak(self) -> int:
        """Return the highest resident size so far, over that after the imports."""
        return resident_peak_bytes() - self.baseline_bytes

    def saved(self) -> int:
        """Return what autograd holds between forward and backward."""
        return self.method.saved_bytes(self.workload.make_batch(0))

    def stats(self) -> dict[str, Any]:
        return self.method.stats()

    def fidelity(self, num_batches: int = 3) -> dict[str, float]:
        """Compare the method's gradient with the exact one, at the weights that training began with."""
        self._restore_weights()
        batches = [self.workload.make_batch(-1 - number) for number in range(num_batches)]
        coded = [self._gradient(batch) for batch in batches]
        with self.method.exact():
            exact = [self._gradient(batch) for batch in batches]
        pairs = list(zip(coded, exact, strict=True))
        errors = [((a - b).norm() / b.norm()).item() for a, b in pairs]
        cosines = [torch.nn.functional.cosine_similarity(a, b, dim=0).item() for a, b in pairs]
        return {"grad_rel_error": sum(errors) / len(errors), "grad_cosine": sum(cosines) / len(cosines)}

    def _restore_weights(self) -> None:
        fresh = self._recipe.build().model.state_dict()
        self.workload.model.load_state_dict(fresh)

    def _gradient(self, batch: Batch) -> torch.Tensor:
        return gradient(self.method, batch, seed=0).double()
