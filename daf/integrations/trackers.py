"""Figures of a session into experiment trackers, each through the call that it is known for."""

from __future__ import annotations

from typing import Any

from daf.integrations.figures import figures

_CALLS = ("log_metrics", "log", "add_scalar")


def log(target: Any, *, step: int, session: Any = None) -> None:
    """Log DAF's figures to `target` for training step `step`; nothing where no session is open.

    | target | call |
    |---|---|
    | the module `mlflow`, a Lightning logger | `log_metrics(figures, step=step)` |
    | the module `wandb` or a run of it, an `accelerate.Accelerator` | `log(figures, step=step)` |
    | a TensorBoard `SummaryWriter` | `add_scalar(name, value, step)` for each |
    """
    call = next((name for name in _CALLS if callable(getattr(target, name, None))), None)
    if call is None:
        raise ValueError(f"{target!r}: DAF can log to what has one of {', '.join(_CALLS)}")
    found = figures(session)
    if not found:
        return
    if call == "add_scalar":
        for name, value in found.items():
            target.add_scalar(name, value, step)
    else:
        getattr(target, call)(found, step=step)


def wandb_endpoint(address: str = "http://127.0.0.1:8787") -> dict[str, dict[str, str]]:
    """Return the settings that make W&B scrape the sidecar's metrics: `wandb.init(settings=wandb.Settings(**...))`."""
    return {
        "x_stats_open_metrics_endpoints": {"daf": f"{address.rstrip('/')}/metrics"},
    }
