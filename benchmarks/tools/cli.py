"""Options that several benchmarks share."""

from __future__ import annotations

import argparse

from benchmarks.train.worker import Job


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="resnet18", help="see benchmarks/workloads/models.py; default: %(default)s")
    parser.add_argument("--data", default="../shared/data", help="folder of the data sets; default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=0, help="default: the model's own")
    parser.add_argument("--seq-len", type=int, default=0, help="default: the model's own")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink width and depth, e.g. 0.25")
    parser.add_argument("--dropout", type=float, default=0.1, help="of the transformers; default: %(default)s")
    parser.add_argument("--threads", type=int, default=0, help="default: torch's own")


def job_of(arguments: argparse.Namespace, method: str = "plain") -> Job:
    """Return the job that the shared options describe."""
    return Job(
        model=arguments.model,
        method=method,
        data=arguments.data,
        batch_size=arguments.batch_size,
        seq_len=arguments.seq_len,
        scale=arguments.scale,
        dropout=arguments.dropout,
        threads=arguments.threads,
    )
