"""The same script twice, plain and under DAF, as two documents that can be compared.

Plain training is run with DAF's allocator alone (`DAF_BITS=off`), which counts memory and hooks nothing. The loss is
what the script prints: the last number behind the word.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import click

PLAIN = {"DAF_BITS": "off", "DAF_BUDGET": "95%", "DAF_NAME": "plain"}
_LOSS = re.compile(r"\bloss\b[^\d\n+-]{0,12}([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)", re.IGNORECASE)


def run_both(words: Sequence[str], budget: str | None) -> list[dict[str, Any]]:
    """Return the documents of both runs; an error where one of them trained nothing."""
    settings = {"DAF_NAME": "DAF", **({"DAF_BUDGET": budget} if budget else {})}
    return [_run(words, PLAIN), _run(words, settings)]


def _run(words: Sequence[str], settings: Mapping[str, str]) -> dict[str, Any]:
    click.echo(f"running {' '.join(words)} ({settings['DAF_NAME']}) ...", err=True)
    with tempfile.TemporaryDirectory(prefix="daf-compare-") as folder:
        environment = {**os.environ, "PYTORCH_ALLOCATOR": "daf", "DAF_SIDECAR": "off", **settings}
        environment["DAF_RUNTIME_DIR"] = folder
        done = subprocess.run(
            [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", check=False,
        )  # fmt: skip
        document = _document(folder)
    if document is None:
        lines = "\n".join(done.stdout.splitlines()[-12:])
        raise click.ClickException(f"{words[0]} trained nothing (exit code {done.returncode}):\n{lines}")
    losses = _LOSS.findall(done.stdout)
    document["loss"] = float(losses[-1]) if losses else None
    return document


def _document(folder: str) -> dict[str, Any] | None:
    """Return the report of the run that made the most steps there: workers of data loaders make none."""
    from daf.errors import DafError
    from daf.server import Client

    before = os.environ.get("DAF_RUNTIME_DIR")
    os.environ["DAF_RUNTIME_DIR"] = folder
    try:
        client = Client.find()
        stats = client.get("/v1/stats")["processes"]
        most = max(stats, key=lambda one: one["values"].get("steps_total", 0), default=None)
        return None if most is None else dict(client.get("/v1/report", process=most["process"]))
    except DafError:
        return None
    finally:
        os.environ.pop("DAF_RUNTIME_DIR")
        if before is not None:
            os.environ["DAF_RUNTIME_DIR"] = before
